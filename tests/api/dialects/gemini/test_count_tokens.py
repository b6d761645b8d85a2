from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.settings import Settings
from models.session import Database
from prompting.format import PromptFormat
from prompting.served_model import ServedModel
from tests.api.harness import MODEL, Server, open_server, user, words
from tests.fakes.clock import START
from tests.prompting.folders import byte_level, write_folder

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


def test_counts_what_is_cached_as_it_was_on_its_day(
    tmp_path: Path, database: Database, settings: Settings, served_model: ServedModel
) -> None:
    """Some templates write the date, and dates differ in length."""
    template = "{{ '<|turn|>' * (strftime_now('%j') | int) }}{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
    folder = write_folder(tmp_path / "model", byte_level(["<|turn|>"]), template)
    dated = replace(served_model, format=PromptFormat.load(folder))
    with open_server(tmp_path, database, settings, dated) as server:
        server.begin()
        with server.client() as http:
            cache = http.post("/v1/cachedContents", json={"model": MODEL, "contents": [user("Who?")]}).json()
            request = {"contents": [user("Hello")], "cachedContent": cache["name"]}
            counted = count(http, {"generateContentRequest": request})["totalTokens"]
            used = http.post(f"/v1/models/{MODEL}:generateContent", json=request).json()["usageMetadata"]
    assert cache["usageMetadata"]["totalTokenCount"] > int(f"{START:%j}")
    assert used["promptTokenCount"] == counted


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
