from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.harness import MODEL, Server, user, words

ROUTE = f"/v1/models/{MODEL}:countTokens"


def count(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = http.post(ROUTE, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_counts_contents_without_asking_a_worker(server: Server, http: httpx.Client) -> None:
    body = count(http, {"contents": [user("Hello there")]})
    assert body == {
        "totalTokens": body["totalTokens"],
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": body["totalTokens"]}],
    }
    assert server.worker.sent == []


def test_is_the_prompt_of_a_generation_but_for_the_opening_of_the_answer(http: httpx.Client) -> None:
    request = {"contents": [user("Hello there")], "systemInstruction": user("Be brief.")}
    counted = count(http, {"generateContentRequest": request})["totalTokens"]
    used = http.post(f"/v1/models/{MODEL}:generateContent", json=request).json()["usageMetadata"]
    assert used["promptTokenCount"] == counted + 4


def test_includes_what_is_cached(http: httpx.Client, create_cache: Callable[..., dict[str, Any]]) -> None:
    cache = create_cache()
    request = {"contents": [user("Hello there")], "cached_content": cache["name"], "model": f"models/{MODEL}"}
    body = count(http, {"generate_content_request": request})
    cached = cache["usageMetadata"]["totalTokenCount"]
    assert body["cachedContentTokenCount"] == cached
    assert body["cacheTokensDetails"] == [{"modality": "TEXT", "tokenCount": cached}]
    used = http.post(f"/v1/models/{MODEL}:generateContent", json=request).json()["usageMetadata"]
    assert used["promptTokenCount"] == body["totalTokens"] + 4


def test_may_end_on_a_model_turn(http: httpx.Client) -> None:
    turns = [user("a"), {"role": "model", "parts": [{"text": "b"}]}]
    assert (
        count(http, {"contents": turns})["totalTokens"] > count(http, {"contents": turns[:1]})["totalTokens"]
    )


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "contents is not specified"),
        ({"contents": []}, "contents is not specified"),
        ({"contents": [user("a")], "generateContentRequest": {"contents": [user("a")]}}, "not both"),
        ({"generateContentRequest": {}}, "contents is not specified"),
        (
            {"generateContentRequest": {"contents": [user("a")], "tools": [{"x": 1}]}},
            "'generate_content_request.tools'",
        ),
        ({"generateContentRequest": {"contents": [user("a")], "x": 1}}, "at 'generate_content_request'"),
        (
            {"generateContentRequest": {"contents": [{"parts": []}]}},
            "generate_content_request.contents[0].parts",
        ),
        ({"generateContentRequest": {"contents": [user("a")], "model": "other"}}, "in the path"),
        ({"contents": [user(words(2000) * 10)]}, "exceeds the maximum number of tokens"),
        ({"contents": [user("a")], "systemInstruction": user("a")}, "Unknown name"),
    ],
)
def test_refuses_what_cannot_be_counted(http: httpx.Client, body: dict[str, Any], part: str) -> None:
    response = http.post(ROUTE, json=body)
    assert response.status_code == 400
    assert part in response.json()["error"]["message"]
