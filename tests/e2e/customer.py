"""A customer of a server: a project's key, used with the stock client and, where shapes matter, with plain HTTP."""

import json
import random
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
from google import genai
from google.genai import types

MODEL = "tiny"
GONE = "CachedContent not found (or permission denied)"
_TIMEOUT_SECONDS = 120
# To read the authorities that a plain connection never asks would take most of a request's time.
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_WORDS = (
    "boat",
    "bridge",
    "rain",
    "river",
    "under",
    "where",
    "nobody",
    "waits",
    "stone",
    "old",
    "map",
    "two",
)


def document(word_count: int, seed: str) -> str:
    """Text of about a token a word; the seed stands in it, and in no other."""
    words = random.Random(seed).choices(_WORDS, k=word_count)
    words.insert(word_count // 2, f"({seed})")
    return " ".join(words)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


def greedy(max_output_tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "maxOutputTokens": max_output_tokens}


def without_cost(cache: dict[str, Any]) -> dict[str, Any]:
    """A cache as it is shown, but for what grows by the second."""
    return {name: value for name, value in cache.items() if name != "cost"}


@dataclass(frozen=True)
class Answer:
    """usage: with the counts as the API names them; finish_reason: empty where a stream has not finished."""

    text: str
    finish_reason: str
    usage: dict[str, Any]

    @property
    def output_tokens(self) -> int:
        return int(self.usage.get("candidatesTokenCount", 0))


def read_answer(chunks: list[dict[str, Any]]) -> Answer:
    """Put the chunks of one answer together; a unary one has one."""
    candidates = [chunk["candidates"][0] for chunk in chunks]
    return Answer(
        text="".join(each["content"]["parts"][0]["text"] for each in candidates),
        finish_reason=candidates[-1].get("finishReason", ""),
        usage=chunks[-1]["usageMetadata"],
    )


@dataclass(frozen=True)
class Customer:
    address: str
    key: str
    project_id: str = ""

    @cached_property
    def http(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.address, headers=self._headers, timeout=_TIMEOUT_SECONDS, verify=NO_AUTHORITIES
        )

    @contextmanager
    def sdk(self, version: str = "v1beta") -> Iterator[genai.Client]:
        client = genai.Client(
            api_key=self.key, http_options=types.HttpOptions(base_url=self.address, api_version=version)
        )
        yield client
        client.close()

    def close(self) -> None:
        if "http" in vars(self):
            self.http.close()

    def create(self, text: str, ttl: str = "600s") -> dict[str, Any]:
        answer = self.http.post("/v1beta/cachedContents", json=self.cache_body(text, ttl))
        assert answer.status_code == 200, answer.text
        cache: dict[str, Any] = answer.json()
        return cache

    def get(self, name: str) -> httpx.Response:
        return self.http.get(f"/v1beta/{name}")

    def patch(self, name: str, ttl: str) -> dict[str, Any]:
        answer = self.http.patch(f"/v1beta/{name}", json={"ttl": ttl})
        assert answer.status_code == 200, answer.text
        cache: dict[str, Any] = answer.json()
        return cache

    def delete(self, name: str) -> None:
        answer = self.http.delete(f"/v1beta/{name}")
        assert answer.status_code == 200, answer.text

    def held_tokens(self) -> int:
        """Arena tokens that caches hold, as the refusal of one more tells; some must be held, or it would fit."""
        answer = self.http.post("/v1beta/cachedContents", json=self.cache_body(document(4000, "too large")))
        assert (answer.status_code, reason_of(answer)) == (429, "ARENA_FULL"), answer.text
        return int(answer.json()["error"]["details"][0]["metadata"]["in_use"])

    def names(self) -> list[str]:
        """Names of the live caches."""
        answer = self.http.get("/v1beta/cachedContents", params={"pageSize": 1000})
        return [each["name"] for each in answer.json().get("cachedContents", [])]

    def ask(self, question: str, cache: str | None, *before: str, tokens: int = 8) -> Answer:
        """Ask greedily: of a cache, or with what would be cached as the turns before."""
        answer = self.http.post(
            self.path("generateContent"), json=self.body(question, cache, *before, tokens=tokens)
        )
        assert answer.status_code == 200, answer.text
        return read_answer([answer.json()])

    def refusal(self, question: str, cache: str) -> tuple[int, str]:
        """Ask of a cache that is gone; gives the status and the reason."""
        answer = self.http.post(self.path("generateContent"), json=self.body(question, cache))
        assert answer.json()["error"]["message"] == GONE
        return answer.status_code, reason_of(answer)

    @contextmanager
    def stream(
        self, question: str, cache: str | None, tokens: int, **headers: str
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Ask for server-sent events; to leave before the last one is to hang up."""
        path, body = self.path("streamGenerateContent"), self.body(question, cache, tokens=tokens)
        with self.http.stream("POST", path, params={"alt": "sse"}, json=body, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line)

    @contextmanager
    def begun(self, path: str, body: dict[str, Any]) -> Iterator[HTTPConnection]:
        """Send a request and do not wait; leaving is to hang up."""
        connection = HTTPConnection(urlsplit(self.address).netloc, timeout=_TIMEOUT_SECONDS)
        headers = self._headers | {"content-type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        yield connection
        connection.close()

    def path(self, method: str) -> str:
        return f"/v1beta/models/{MODEL}:{method}"

    def body(self, question: str, cache: str | None, *before: str, tokens: int = 8) -> dict[str, Any]:
        contents = [user(text) for text in (*before, question)]
        named = {} if cache is None else {"cachedContent": cache}
        return {"contents": contents, "generationConfig": greedy(tokens), **named}

    def cache_body(self, text: str, ttl: str = "600s") -> dict[str, Any]:
        return {"model": f"models/{MODEL}", "contents": [user(text)], "ttl": ttl}

    @property
    def _headers(self) -> dict[str, str]:
        return {"x-goog-api-key": self.key}


def reason_of(answer: httpx.Response) -> str:
    reason: str = answer.json()["error"]["details"][0]["reason"]
    return reason
