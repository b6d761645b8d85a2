"""generateContent with a cache: counts, conflicts, and the same answer as without."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from models.usage import UsageState
from tests.conformance.client import Client, content, refused, text_of
from tests.conformance.servers import TINY, Key
from tests.conformance.test_transport import refusals
from tests.e2e.customer import greedy, reason_of, user
from tests.e2e.processes import wait_until

GENERATE = f"/v1beta/models/{TINY}:generateContent"
CONFLICT = (
    "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config.\n\n"
    "Proposed fix: "
)
TOOLS = [{"functionDeclarations": [{"name": "look", "description": "Looks."}]}]
TOOL_CONFIG = {"functionCallingConfig": {"mode": "ANY"}}


def counts(answer: dict[str, Any], name: str) -> int:
    """The sum of a list of details."""
    return sum(each["tokenCount"] for each in answer["usageMetadata"][name])


def test_43_a_cache_is_named_in_full_or_by_its_id(client: Client) -> None:
    name = client.create(content(70, "name"))["name"]
    answers = [client.ask("Where?", cachedContent=each) for each in (name, name.partition("/")[2])]
    assert text_of(answers[0]) == text_of(answers[1]) != ""
    assert answers[0]["usageMetadata"] == answers[1]["usageMetadata"]


def test_44_45_counts_are_sums_of_each_other(client: Client) -> None:
    contents = content(70, "counts")
    cache = client.create(contents)
    cached_tokens = cache["usageMetadata"]["totalTokenCount"]
    whole = client.ask([*contents, user("Where?")])["usageMetadata"]
    answer = client.ask("Where?", cachedContent=cache["name"])
    usage = answer["usageMetadata"]
    assert usage["promptTokenCount"] == whole["promptTokenCount"] > cached_tokens
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]
    assert cached_tokens <= usage["cachedContentTokenCount"] <= usage["promptTokenCount"]
    assert counts(answer, "promptTokensDetails") == usage["promptTokenCount"]
    assert counts(answer, "cacheTokensDetails") == usage["cachedContentTokenCount"]


def test_45_where_nothing_else_is_reused_the_cached_count_is_the_caches(client: Client) -> None:
    alone = client.using(headers={"X-Headstart-Reuse": "off"})
    contents = content(70, "alone")
    cache = alone.create(contents)
    question = "And so? " * 40
    alone.ask([*contents, user(question)])
    for _ in range(2):
        usage = alone.ask(question, cachedContent=cache["name"])["usageMetadata"]
        assert usage["cachedContentTokenCount"] == cache["usageMetadata"]["totalTokenCount"]


def test_46_counts_of_nothing_are_left_out(client: Client) -> None:
    usage = client.ask("Where?")["usageMetadata"]
    left_out = {
        "cachedContentTokenCount",
        "cacheTokensDetails",
        "thoughtsTokenCount",
        "toolUsePromptTokenCount",
    }
    assert not left_out & usage.keys()
    assert usage["promptTokenCount"] > 0


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"systemInstruction": "Be brief."}, "system_instruction"),
        ({"tools": TOOLS}, "tools"),
        ({"toolConfig": TOOL_CONFIG}, "tool_config"),
        ({"systemInstruction": "Be brief.", "tools": TOOLS, "toolConfig": TOOL_CONFIG}, "system_instruction"),
    ],
)
def test_47_what_a_cache_carries_is_refused_beside_it(
    client: Client, config: dict[str, Any], field: str
) -> None:
    name = client.create(content(70, "conflict"))["name"]
    for ask in (client.ask, client.stream):
        refusal = refused(ask, "Where?", cachedContent=name, **config)
        assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")
        assert refusal.message.startswith(CONFLICT)
        assert refusal.reason == "CACHE_FIELD_CONFLICT"
        assert refusal.details[0]["metadata"]["field"] == field


@pytest.mark.parametrize("body", [{"tools": [{"googleSearch": {}}]}, {"toolConfig": {"foo": 1}, "foo": 1}])
def test_47_whatever_else_is_wrong_with_it(http: httpx.Client, body: dict[str, Any]) -> None:
    cached = {"contents": [user("Where?")], "cachedContent": "cachedContents/any"}
    answer = http.post(GENERATE, json={**cached, **body})
    assert (answer.status_code, reason_of(answer)) == (400, "CACHE_FIELD_CONFLICT")
    assert answer.json()["error"]["message"].startswith(CONFLICT)


def test_48_another_model_is_refused_with_both_names(client: Client) -> None:
    name = client.create(content(70, "model"))["name"]
    refusal = refused(client.ask, "Where?", model="gemini-9", cachedContent=name)
    assert (refusal.code, refusal.status, refusal.reason) == (400, "INVALID_ARGUMENT", "CACHE_MODEL_MISMATCH")
    assert refusal.message == (
        f"Model used by GenerateContent request (models/gemini-9) and CachedContent (models/{TINY}) has to be the same."
    )


def test_49_settings_of_the_generation_are_allowed_beside_a_cache(client: Client) -> None:
    name = client.create(content(70, "settings"))["name"]
    answer = client.ask(
        "Where?",
        cachedContent=name,
        temperature=0.7,
        topP=0.9,
        topK=20,
        seed=3,
        maxOutputTokens=6,
        stopSequences=["never said"],
        candidateCount=2,
        presencePenalty=0.5,
        frequencyPenalty=0.5,
        responseLogprobs=True,
        logprobs=1,
        responseMimeType="text/plain",
        safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    )
    assert [candidate["index"] for candidate in answer["candidates"]] == [0, 1]
    assert answer["usageMetadata"]["candidatesTokenCount"] == 12


def test_49_so_are_labels(http: httpx.Client) -> None:
    made = http.post("/v1beta/cachedContents", json={"model": TINY, "contents": content(70, "labels")}).json()
    body = {
        "contents": [user("Where?")],
        "cachedContent": made["name"],
        "labels": {"team": "a"},
        "generationConfig": greedy(2),
    }
    assert http.post(GENERATE, json=body).status_code == 200


def test_51_the_answer_is_the_same_with_and_without_a_cache(built_in: Client) -> None:
    told = [user("Ada has a grey cat named Miro, who sleeps in the kitchen. " * 6)]
    cache = built_in.create(told, systemInstruction="Answer in one sentence.")
    question = user("What is the cat's name?")
    with_it = built_in.ask([question], cachedContent=cache["name"], maxOutputTokens=10)
    without = built_in.ask([*told, question], systemInstruction="Answer in one sentence.", maxOutputTokens=10)
    assert text_of(with_it) == text_of(without) != ""
    usages = [answer["usageMetadata"] for answer in (with_it, without)]
    for name in ("promptTokenCount", "candidatesTokenCount", "totalTokenCount"):
        assert usages[0][name] == usages[1][name]


@pytest.mark.parametrize("end", ["delete", "expire"])
def test_52_a_request_under_way_is_completed_when_its_cache_ends(
    client: Client, http: httpx.Client, end: str
) -> None:
    name = client.create(content(70, "under way"))["name"]
    asked = client.host.books.generations
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.stream, "Tell me all.", cachedContent=name, maxOutputTokens=300)
        wait_until(lambda: asked(client.key.project_id), "the request is there")
        if end == "delete":
            assert http.delete(f"/v1beta/{name}").status_code == 200
        else:
            assert http.patch(f"/v1beta/{name}", json={"ttl": "0.01s"}).status_code == 200
        wait_until(lambda: http.get(f"/v1beta/{name}").status_code == 403, "it has ended")
        (row,) = asked(client.key.project_id)
        assert row.state is UsageState.RESERVED
        events = answer.result()
    assert events[-1]["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert events[-1]["usageMetadata"]["candidatesTokenCount"] == 300


@pytest.mark.parametrize("body", [{}, {"contents": []}, {"contents": None}])
def test_53_there_must_be_contents(http: httpx.Client, body: dict[str, Any]) -> None:
    name = http.post("/v1beta/cachedContents", json={"model": TINY, "contents": content(70, "53")}).json()[
        "name"
    ]
    for path in (GENERATE, GENERATE.replace("generate", "streamGenerate") + "?alt=sse"):
        for given in (body, {**body, "cachedContent": name}):
            error = http.post(path, json=given).json()["error"]
            assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
            assert "contents" in error["message"]


def test_54_only_a_cache_at_fault_is_spoken_of(http: httpx.Client, key: Key) -> None:
    """Clients that find these words in a 400, 403 or 404 make the cache anew, and ask again."""
    cached_content = re.compile("(?<!create)cached ?content", re.IGNORECASE)
    model_turn = {"contents": [user("Hi."), {"role": "model", "parts": [{"text": "Hello."}]}]}
    bodies: list[dict[str, Any]] = [
        model_turn,
        {"contents": [user("Where?")], "systemInstruction": {"parts": []}},
        {"contents": [user("Where?")], "tools": TOOLS},
        {"contents": content(5000, "too much")},
        {"contents": [{"parts": [{"fileData": {"fileUri": "gs://x"}}]}]},
    ]
    answers = [http.post(GENERATE, json=body) for body in bodies]
    answers += [answer for answer, _, _ in refusals(http, key) if "absent" not in answer.url.path]
    for answer in answers:
        assert not cached_content.search(answer.json()["error"]["message"]), answer.text

    gone = http.get("/v1beta/cachedContents/absent").json()["error"]["message"]
    asked = {"contents": [user("Where?")], "cachedContent": "absent"}
    assert gone == http.post(GENERATE, json=asked).json()["error"]["message"]
    assert cached_content.search(gone)
    assert "system" not in gone.lower()
