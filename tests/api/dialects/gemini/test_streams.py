import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from core.errors import ArenaFull, Unavailable
from tests.api.harness import MODEL, Server, user
from tests.fakes.worker import Script

SSE = f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"
ARRAY = f"/v1/models/{MODEL}:streamGenerateContent"
Create = Callable[..., dict[str, Any]]


def ask(http: httpx.Client, route: str = SSE, **fields: Any) -> httpx.Response:
    return http.post(route, json={"contents": [user("Hi")]} | fields)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Read a stream as the strictest client would."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.content.isascii()
    assert response.text.endswith("\n\n")
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: {") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks)


class TestEvents:
    def test_each_is_a_whole_response(self, http: httpx.Client, create_cache: Create) -> None:
        cache = create_cache()
        response = ask(http, cachedContent=cache["name"])
        chunks = events(response)
        assert text(chunks) == "Hello world"
        for chunk in chunks:
            candidate = chunk["candidates"][0]
            assert candidate["index"] == 0
            assert candidate["content"]["role"] == "model"
            assert len(candidate["content"]["parts"]) == 1
            assert chunk["modelVersion"] == "tiny"
            assert chunk["responseId"] == response.headers["x-request-id"]
            assert (
                chunk["usageMetadata"]["cachedContentTokenCount"] == cache["usageMetadata"]["totalTokenCount"]
            )
        assert len({chunk["usageMetadata"]["promptTokenCount"] for chunk in chunks}) == 1

    def test_each_counts_the_implicit_hit(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        cache = create_cache()
        cached = cache["usageMetadata"]["totalTokenCount"]
        server.script = Script(implicit_cache_tokens=5)
        usages = [chunk["usageMetadata"] for chunk in events(ask(http, cachedContent=cache["name"]))]
        assert len(usages) == 3
        for usage in usages:
            assert (usage["cachedContentTokenCount"], usage["implicitCachedTokenCount"]) == (cached + 5, 5)

    def test_counts_grow_and_the_last_are_those_of_a_unary_call(self, http: httpx.Client) -> None:
        chunks = events(ask(http))
        assert [chunk["usageMetadata"]["candidatesTokenCount"] for chunk in chunks] == [1, 3, 3]
        unary = http.post(f"/v1/models/{MODEL}:generateContent", json={"contents": [user("Hi")]}).json()
        assert chunks[-1]["usageMetadata"] == unary["usageMetadata"]

    def test_only_the_last_says_why_it_ended(self, http: httpx.Client) -> None:
        reasons = [chunk["candidates"][0].get("finishReason") for chunk in events(ask(http))]
        assert reasons == [None, None, "STOP"]

    def test_an_empty_answer_is_one_event(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=())
        chunks = events(ask(http))
        assert len(chunks) == 1
        assert chunks[0]["candidates"][0]["content"]["parts"] == [{"text": ""}]
        assert "candidatesTokenCount" not in chunks[0]["usageMetadata"]

    def test_tokens_without_text_make_no_event(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=(((1,), ""), ((2,), "é"), ((3,), "")))
        chunks = events(ask(http))
        assert [chunk["usageMetadata"]["candidatesTokenCount"] for chunk in chunks] == [2, 3]

    def test_no_character_ends_a_line(self, server: Server, http: httpx.Client) -> None:
        hostile = "a\u2028b\u2029c\u0085d\re\nf\x00\x1fg\n\ndata: {}\n\n😀"
        server.script = Script(pieces=(((1,), hostile),))
        assert text(events(ask(http))) == hostile

    def test_they_come_one_by_one(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(hold_before=1)
        with http.stream("POST", SSE, json={"contents": [user("Hi")]}) as response:
            lines = response.iter_lines()
            assert '"Hello"' in next(lines)
            server.worker.release.set()
            assert any('" world"' in line for line in lines)


class TestErrors:
    @pytest.mark.parametrize(
        "error", [ArenaFull("No room."), Unavailable("Draining.", retry_after_seconds=1)]
    )
    def test_before_the_first_text_are_a_real_status(
        self, server: Server, http: httpx.Client, error: ArenaFull | Unavailable
    ) -> None:
        server.script = Script(pieces=(((1,), ""),), error=error)
        response = ask(http)
        assert response.status_code == {"arena_full": 429, "unavailable": 503}[error.code]
        assert response.json()["error"]["message"] == error.message

    def test_later_are_the_last_event(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(error=Unavailable("The engine is gone."))
        response = ask(http)
        *chunks, last = events(response)
        assert text(chunks) == "Hello world"
        assert list(last) == ["error"]
        assert (last["error"]["code"], last["error"]["status"]) == (503, "UNAVAILABLE")
        assert 'data: {"error":' in response.text

    def test_a_refused_request_is_a_plain_answer(self, http: httpx.Client) -> None:
        response = http.post(SSE, json={"contents": []})
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"


class TestArray:
    def test_is_one_json_array_of_the_same_responses(self, http: httpx.Client) -> None:
        for route in (ARRAY, f"{ARRAY}?alt=json"):
            response = ask(http, route)
            assert response.headers["content-type"] == "application/json"
            assert text(response.json()) == "Hello world"
            assert response.json()[-1]["candidates"][0]["finishReason"] == "STOP"

    def test_comes_one_by_one(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(hold_before=1)
        with http.stream("POST", ARRAY, json={"contents": [user("Hi")]}) as response:
            parts = response.iter_text()
            first = next(parts)
            assert first.startswith('[{"candidates"')
            server.worker.release.set()
            assert json.loads(first + "".join(parts))

    def test_an_error_is_an_element(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(error=Unavailable("The engine is gone."))
        assert ask(http, ARRAY).json()[-1]["error"]["code"] == 503
        refused = http.post(ARRAY, json={"contents": []})
        assert (refused.status_code, refused.json()[0]["error"]["code"]) == (400, 400)

    @pytest.mark.parametrize("alt", ["media", "proto", "SSE"])
    def test_other_formats_are_refused(self, http: httpx.Client, alt: str) -> None:
        assert ask(http, f"{ARRAY}?alt={alt}").status_code == 400
