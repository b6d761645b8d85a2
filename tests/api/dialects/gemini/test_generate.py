from collections.abc import Callable
from typing import Any

import httpx
import pytest

from core.errors import Internal, Unavailable
from core.messages import FinishReason
from models.cache import Cache
from models.usage import Usage, UsageState
from tests.api.harness import ALIAS, MODEL, Server, on_each_database, user, words
from tests.fakes.worker import Script

pytestmark = on_each_database

ROUTE = f"/v1/models/{MODEL}:generateContent"
Create = Callable[..., dict[str, Any]]


def ask(http: httpx.Client, text: str = "Hi", **fields: Any) -> httpx.Response:
    return http.post(ROUTE, json={"contents": [user(text)]} | fields)


def message(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"]["message"])


def usage_row(server: Server, request_id: str) -> Usage:
    with server.state.database.read() as session:
        row = session.get(Usage, request_id)
        assert row is not None
        return row


def usage_rows(server: Server) -> list[Usage]:
    with server.state.database.read() as session:
        return [
            row
            for row in session.query(Usage).filter_by(project_id=server.project_id)
            if row.kind == "GENERATE"
        ]


class TestAnswer:
    def test_has_googles_shape(self, http: httpx.Client) -> None:
        response = ask(http)
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        prompt = body["usageMetadata"]["promptTokenCount"]
        assert body == {
            "candidates": [
                {
                    "content": {"role": "model", "parts": [{"text": "Hello world"}]},
                    "finishReason": "STOP",
                    "index": 0,
                }
            ],
            "usageMetadata": {
                "promptTokenCount": prompt,
                "candidatesTokenCount": 3,
                "totalTokenCount": prompt + 3,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
            },
            "modelVersion": "tiny",
            "responseId": response.headers["x-request-id"],
            "cost": {
                "amountNanoUsd": prompt * 100 + 1_200,
                "nanoUsdByMeter": {"input_tokens": prompt * 100, "output_tokens": 1_200},
                "savedNanoUsd": 0,
            },
        }

    def test_shows_the_served_name_under_an_alias(self, http: httpx.Client) -> None:
        for name in (ALIAS, "org/other"):
            body = http.post(f"/v1beta/models/{name}:generateContent", json={"contents": [user("Hi")]}).json()
            assert body["modelVersion"] == "tiny"

    def test_without_any_text_there_still_is_a_part(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=())
        body = ask(http).json()
        assert body["candidates"][0]["content"]["parts"] == [{"text": ""}]
        assert "candidatesTokenCount" not in body["usageMetadata"]

    @pytest.mark.parametrize(
        ("reason", "shown"),
        [
            (FinishReason.STOP, "STOP"),
            (FinishReason.MAX_TOKENS, "MAX_TOKENS"),
            (FinishReason.CANCELLED, "OTHER"),
        ],
    )
    def test_says_why_it_ended(
        self, server: Server, http: httpx.Client, reason: FinishReason, shown: str
    ) -> None:
        server.script = Script(reason=reason)
        assert ask(http).json()["candidates"][0]["finishReason"] == shown

    def test_tokens_without_text_of_their_own_count(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=(((1, 2), ""), ((3,), "é")))
        assert ask(http).json()["usageMetadata"]["candidatesTokenCount"] == 3


class TestImplicitHits:
    def test_count_beside_the_cache_and_without_one(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        cache = create_cache()
        cached = cache["usageMetadata"]["totalTokenCount"]
        server.script = Script(implicit_cache_tokens=5)
        for explicit, fields in ((cached, {"cachedContent": cache["name"]}), (0, {})):
            body = ask(http, **fields).json()
            usage, new = body["usageMetadata"], len(server.worker.generated[-1].token_ids)
            assert usage == {
                "promptTokenCount": explicit + new,
                "cachedContentTokenCount": explicit + 5,
                "implicitCachedTokenCount": 5,
                "candidatesTokenCount": 3,
                "totalTokenCount": explicit + new + 3,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": explicit + new}],
                "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": explicit + 5}],
            }
            row = usage_row(server, body["responseId"])
            assert (row.prompt_tokens, row.input_tokens) == (explicit + new, new - 5)
            assert (row.cache_read_tokens, row.implicit_cache_tokens) == (explicit + 5, 5)

    def test_are_told_of_an_empty_answer_too(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=(), implicit_cache_tokens=5)
        usage = ask(http).json()["usageMetadata"]
        assert (usage["cachedContentTokenCount"], usage["implicitCachedTokenCount"]) == (5, 5)

    def test_are_no_hits_of_a_cache(self, server: Server, http: httpx.Client, create_cache: Create) -> None:
        name = create_cache()["name"]
        server.script = Script(implicit_cache_tokens=5)
        ask(http)
        assert http.get(f"/v1/{name}").json()["hitCount"] == 0
        ask(http, cachedContent=name)
        assert http.get(f"/v1/{name}").json()["hitCount"] == 1


class TestWithACache:
    def test_counts_what_came_from_it(self, server: Server, http: httpx.Client, create_cache: Create) -> None:
        cache = create_cache()
        cached = cache["usageMetadata"]["totalTokenCount"]
        usage = ask(http, cachedContent=cache["name"]).json()["usageMetadata"]
        new = len(server.worker.generated[0].token_ids)
        assert usage == {
            "promptTokenCount": cached + new,
            "cachedContentTokenCount": cached,
            "implicitCachedTokenCount": 0,
            "candidatesTokenCount": 3,
            "totalTokenCount": cached + new + 3,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": cached + new}],
            "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": cached}],
        }

    @pytest.mark.trap("T39")
    def test_only_what_is_new_goes_to_the_worker_and_the_whole_is_the_same_prompt(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        contents = [user(words(100)), {"role": "model", "parts": [{"text": "Yes?"}]}]
        cache = create_cache(contents=contents, systemInstruction=user("Be brief."))
        ask(http, "What is it?", cachedContent=cache["name"])
        http.post(
            ROUTE, json={"contents": [*contents, user("What is it?")], "systemInstruction": user("Be brief.")}
        )
        hit, cold = server.worker.generated
        cached = cache["usageMetadata"]["totalTokenCount"]
        assert hit.cache_id == cache["name"].removeprefix("cachedContents/")
        assert hit.token_ids == cold.token_ids[cached:]
        assert cold.cache_id is None

    def test_a_user_turn_may_follow_a_user_turn(self, http: httpx.Client, create_cache: Create) -> None:
        assert ask(http, cachedContent=create_cache()["name"]).status_code == 200

    @pytest.mark.trap("T45")
    @pytest.mark.parametrize("route", ["generateContent", "streamGenerateContent", "countTokens"])
    def test_a_turn_of_the_model_is_not_divided(
        self, http: httpx.Client, create_cache: Create, route: str
    ) -> None:
        """Without a cache the two would be one message, and another prompt."""
        turn = {"role": "model", "parts": [{"text": "Yes"}]}
        cache = create_cache(contents=[user(words(100)), turn])
        body: dict[str, Any] = {"cachedContent": cache["name"], "contents": [turn, user("Go on.")]}
        if route == "countTokens":
            body = {"generateContentRequest": body}
        response = http.post(ROUTE.replace("generateContent", route), json=body)
        assert response.status_code == 400
        assert "CACHE_PREFIX_MISMATCH" in response.text
        assert ask(http, cachedContent=cache["name"]).status_code == 200

    def test_the_name_may_be_bare_or_in_snake_case(self, http: httpx.Client, create_cache: Create) -> None:
        name = create_cache()["name"]
        assert ask(http, cachedContent=name.removeprefix("cachedContents/")).status_code == 200
        assert ask(http, cached_content=name).status_code == 200
        assert "cachedContentTokenCount" not in ask(http, cachedContent="").text

    def test_an_alias_made_it_and_either_name_asks(self, http: httpx.Client, create_cache: Create) -> None:
        name = create_cache(model=ALIAS)["name"]
        for model in (ALIAS, MODEL):
            body = {"contents": [user("Hi")], "cachedContent": name}
            assert http.post(f"/v1/models/{model}:generateContent", json=body).status_code == 200

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("systemInstruction", {"parts": [{"text": "x"}]}),
            ("system_instruction", {"parts": [{"text": "x"}]}),
            ("tools", [{"functionDeclarations": []}]),
            ("toolConfig", {"functionCallingConfig": {"mode": "AUTO"}}),
        ],
    )
    def test_what_the_cache_holds_is_not_repeated(
        self, http: httpx.Client, create_cache: Create, field: str, value: Any
    ) -> None:
        response = ask(http, cachedContent=create_cache()["name"], **{field: value})
        assert message(response).startswith(
            "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config.\n\n"
            "Proposed fix:"
        )
        info = response.json()["error"]["details"][0]
        assert info["reason"] == "CACHE_FIELD_CONFLICT"
        assert info["metadata"]["field"] in {"system_instruction", "tools", "tool_config"}

    def test_settings_of_this_request_may_stand_beside_it(
        self, http: httpx.Client, create_cache: Create
    ) -> None:
        response = ask(
            http,
            cachedContent=create_cache()["name"],
            generationConfig={"temperature": 0, "stopSequences": ["x"]},
            safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
            labels={"team": "a"},
            serviceTier="standard",
        )
        assert response.status_code == 200

    def test_another_model_is_400_and_both_are_named(self, http: httpx.Client, create_cache: Create) -> None:
        body = {"contents": [user("Hi")], "cachedContent": create_cache()["name"]}
        response = http.post("/v1/models/gemini-99:generateContent", json=body)
        assert message(response) == (
            "Model used by GenerateContent request (models/gemini-99) and CachedContent (models/tiny) has to be the same."
        )

    def test_a_model_that_is_served_under_a_new_name_keeps_its_caches(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        name = create_cache()["name"]
        with server.state.database.write() as session:
            cache = session.get(Cache, name.removeprefix("cachedContents/"))
            assert cache is not None
            cache.model = "its-old-name"
        assert ask(http, cachedContent=name).json()["usageMetadata"]["cachedContentTokenCount"] > 100

    def test_one_in_flight_outlives_the_cache(self, server: Server, create_cache: Create) -> None:
        name = create_cache(ttl="60s")["name"]
        server.script = Script(hold_before=1)
        with server.client() as http, server.later(lambda: ask(http, cachedContent=name)) as coming:
            server.wait_for(lambda: len(server.worker.generated) == 1)
            server.clock.advance(61)
            with server.client() as other:
                assert ask(other, cachedContent=name).status_code == 403
            server.worker.release.set()
            assert coming.result().json()["usageMetadata"]["cachedContentTokenCount"] > 100


class TestParameters:
    def test_defaults_are_the_models(self, server: Server, http: httpx.Client) -> None:
        prompt = ask(http).json()["usageMetadata"]["promptTokenCount"]
        ask(http, generationConfig={})
        for sent in server.worker.generated:
            assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k) == (1.0, 0.95, 64)
            assert sent.max_output_tokens == 400 - prompt
            assert sent.stop_sequences == ()
        first, second = server.worker.generated
        assert first.sampling.seed != second.sampling.seed

    def test_what_is_asked_for_is_sent(self, server: Server, http: httpx.Client) -> None:
        config = {
            "temperature": 0,
            "topP": 0.5,
            "topK": 3.0,
            "seed": -5,
            "maxOutputTokens": 7,
            "stopSequences": ["a", "b"],
        }
        assert ask(http, generationConfig=config).status_code == 200
        sent = server.worker.generated[0]
        assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k, sent.sampling.seed) == (
            0,
            0.5,
            3,
            -5,
        )
        assert (sent.max_output_tokens, sent.stop_sequences) == (7, ("a", "b"))

    def test_more_output_than_there_is_room_for_is_cut(self, server: Server, http: httpx.Client) -> None:
        prompt = ask(http, generationConfig={"maxOutputTokens": 100_000}).json()["usageMetadata"][
            "promptTokenCount"
        ]
        assert server.worker.generated[0].max_output_tokens == 400 - prompt


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "part"),
        [
            ({}, "contents is not specified"),
            ({"contents": []}, "contents is not specified"),
            (
                {"contents": [{"role": "model", "parts": [{"text": "a"}]}]},
                "Requests ending with a model turn are not supported.",
            ),
            ({"contents": [user("a")], "tools": [{"googleSearch": {}}]}, "'tools' is not supported"),
            ({"contents": [user("a")], "toolConfig": {}}, "'tool_config' is not supported"),
            (
                {"contents": [user("a")], "generationConfig": {"responseSchema": {}}},
                "'generation_config.response_schema'",
            ),
            (
                {"contents": [user("a")], "generationConfig": {"candidateCount": 9}},
                "'generation_config.candidate_count'",
            ),
            (
                {"contents": [user("a")], "generationConfig": {"presencePenalty": 2.1}},
                "'generation_config.presence_penalty'",
            ),
            ({"contents": [user("a")], "generationConfig": {"logprobs": 3}}, "set responseLogprobs to true"),
            ({"contents": [user("a")], "continuationToken": "x"}, "'continuation_token'"),
            ({"contents": [user("a")], "store": True}, "'store'"),
            ({"contents": [user("a")], "model": "models/other"}, "in the path"),
            ({"contents": [user("a")], "nonsense": 1}, 'Unknown name "nonsense": Cannot find field.'),
        ],
    )
    def test_are_400_and_name_what_is_wrong(
        self, server: Server, http: httpx.Client, body: dict[str, Any], part: str
    ) -> None:
        assert part in message(http.post(ROUTE, json=body))
        assert server.worker.sent == []
        assert usage_rows(server) == []

    def test_empty_tools_are_none(self, http: httpx.Client) -> None:
        assert ask(http, tools=[]).status_code == 200

    def test_the_model_may_be_repeated_in_the_body(self, http: httpx.Client) -> None:
        assert ask(http, model=f"models/{ALIAS}").status_code == 200

    def test_an_unknown_model_is_404(self, http: httpx.Client) -> None:
        response = http.post("/v1/models/gemini-99:generateContent", json={"contents": [user("Hi")]})
        assert (
            "models/gemini-99 is not found for API version v1, or is not supported for generateContent"
            in message(response, 404)
        )

    @pytest.mark.parametrize("text", [words(1000), "a" * 90_000])
    def test_too_much_input_has_both_numbers(self, server: Server, http: httpx.Client, text: str) -> None:
        shown = message(ask(http, text))
        assert shown.startswith("The input token count (")
        assert shown.endswith(") exceeds the maximum number of tokens allowed (399).")
        assert server.worker.sent == []

    def test_a_cache_and_what_is_new_count_together(self, http: httpx.Client, create_cache: Create) -> None:
        name = create_cache(contents=[user(words(180))])["name"]
        assert "(399)" in message(ask(http, words(80), cachedContent=name))


class TestUsage:
    def test_is_reserved_before_the_worker_is_asked_and_final_before_the_answer(self, server: Server) -> None:
        server.script = Script(hold_before=0)
        with server.client() as http, server.later(lambda: ask(http)) as coming:
            server.wait_for(lambda: len(server.worker.generated) == 1)
            row = usage_row(server, server.worker.generated[0].request_id)
            assert (row.state, row.attempt) == (UsageState.RESERVED, 1)
            server.worker.release.set()
            body = coming.result().json()
        row = usage_row(server, body["responseId"])
        assert (row.state, row.output_tokens, row.input_tokens) == (
            "FINAL",
            3,
            body["usageMetadata"]["promptTokenCount"],
        )

    def test_a_worker_that_takes_nothing_is_owed_nothing(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(refusal=Unavailable("The inbox is full.", retry_after_seconds=1))
        response = ask(http)
        assert message(response, 503) == "The inbox is full."
        row = usage_row(server, response.headers["x-request-id"])
        assert (row.state, row.end_reason) == (UsageState.VOID, "unavailable")

    def test_an_error_of_the_worker_is_the_answer(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=(), error=Internal("The engine failed."))
        response = ask(http)
        assert message(response, 500) == "The engine failed."
        assert usage_row(server, response.headers["x-request-id"]).state == UsageState.VOID
