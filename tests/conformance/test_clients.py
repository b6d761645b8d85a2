"""The clients themselves: which are tested, how each raises what is refused, and that a script needs no change."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.client import Client, content, refused
from tests.conformance.drivers import DRIVERS, Driver
from tests.conformance.sdks import SDKS, Sdk
from tests.conformance.servers import SLOW_QUOTA, TINY, Key
from tests.e2e.customer import GONE, document, user

PYTHON_SCRIPT = """
from google import genai

client = genai.Client()
cache = client.caches.create(model="gemini-2.5-flash", config={"contents": %(document)r, "ttl": "300s"})
answer = client.models.generate_content(
    model="gemini-2.5-flash", contents="Where?", config={"cached_content": cache.name, "max_output_tokens": 4}
)
print(answer.usage_metadata.cached_content_token_count == cache.usage_metadata.total_token_count)
print(sum(bool(chunk.candidates) for chunk in client.models.generate_content_stream(
    model="gemini-2.5-flash", contents="Where?", config={"cached_content": cache.name, "max_output_tokens": 4}
)) > 1)
client.caches.delete(name=cache.name)
print([each.name for each in client.caches.list()] == [])
"""
JS_SCRIPT = """
import { GoogleGenAI } from "@google/genai";

const client = new GoogleGenAI({});
const model = "gemini-2.5-flash";
const cache = await client.caches.create({ model, config: { contents: %(document)r, ttl: "300s" } });
const config = { cachedContent: cache.name, maxOutputTokens: 4 };
const answer = await client.models.generateContent({ model, contents: "Where?", config });
console.log(answer.usageMetadata.cachedContentTokenCount === cache.usageMetadata.totalTokenCount);
let chunks = 0;
for await (const chunk of await client.models.generateContentStream({ model, contents: "Where?", config })) {
  chunks += chunk.candidates.length;
}
console.log(chunks > 1);
await client.caches.delete({ name: cache.name });
let left = 0;
for await (const each of await client.caches.list()) left += 1;
console.log(left === 0);
"""


def test_83_every_version_of_every_client_is_tested(sdk: Sdk) -> None:
    """Every other test that says "each client" runs once for each of these."""
    assert sdk.installed_version() == sdk.version


def test_83_they_are_those_of_the_checklist() -> None:
    assert [(sdk.language, sdk.version) for sdk in SDKS] == [
        ("python", "3.6.1"),
        ("python", "2.34.0"),
        ("python", "1.75.0"),
        ("js", "3.3.0"),
        ("js", "2.32.0"),
    ]
    assert len(DRIVERS) == 9


Ask = Callable[[Client, str], object]
TOO_LARGE, TURNS = document(5000, "large"), [user("Hi."), {"role": "model", "parts": [{"text": "Hello."}]}]
INVALID, DENIED, MISSING = (
    (400, "INVALID_ARGUMENT"),
    (403, "PERMISSION_DENIED"),
    (404, "NOT_FOUND"),
)
# What clients match on: how to be refused (of a client, and a cache of its), and with which code, status and words.
ROWS: list[tuple[str, Ask, tuple[int, str], str]] = [
    ("too small", lambda client, _: client.create([user("Hi.")]), INVALID, "Cached content is too small."),
    ("too large", lambda client, _: client.create([user(TOO_LARGE)]), INVALID, "The input token count ("),
    (
        "unknown model",
        lambda client, _: client.create(content(70, "x"), model="no"),
        MISSING,
        "models/no is not",
    ),
    ("get", lambda client, _: client.get("absent"), DENIED, GONE),
    ("patch", lambda client, _: client.update("absent", ttl="60s"), DENIED, GONE),
    ("delete", lambda client, _: client.delete("absent"), DENIED, GONE),
    ("use", lambda client, _: client.ask("?", cachedContent="absent"), DENIED, GONE),
    ("stream", lambda client, _: client.stream("?", cachedContent="absent"), DENIED, GONE),
    (
        "conflict",
        lambda client, name: client.ask("?", cachedContent=name, systemInstruction="No."),
        INVALID,
        "CachedContent can not be used with GenerateContent request setting",
    ),
    (
        "other model",
        lambda client, name: client.ask("?", cachedContent=name, model="no"),
        INVALID,
        f"Model used by GenerateContent request (models/no) and CachedContent (models/{TINY}) has to be",
    ),
    (
        "model turn",
        lambda client, _: client.ask(TURNS),
        INVALID,
        "Requests ending with a model turn are not supported.",
    ),
    (
        "deadline",
        lambda client, _: client.ask(
            "Tell me all.", maxOutputTokens=3500, httpOptions={"headers": {"X-Server-Timeout": "1"}}
        ),
        (504, "DEADLINE_EXCEEDED"),
        "The answer was not ready within",
    ),
]


def expected_class(driver: Driver, code: int) -> str:
    """What each client promises to raise."""
    language = driver.name.partition("-")[0]
    python = "ClientError" if code < 500 else "ServerError"
    return {"rest": "HTTP", "js": "ApiError", "python": python}[language]


@pytest.mark.parametrize(
    ("ask", "expected", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_84_each_client_raises_its_own_class(
    client: Client, ask: Ask, expected: tuple[int, str], words: str
) -> None:
    name = client.create(content(70, "row"))["name"]
    refusal = refused(ask, client, name)
    assert refusal.type == expected_class(client.driver, expected[0])
    assert (refusal.code, refusal.status) == expected
    assert refusal.message.startswith(words)
    assert refusal.body["error"]["code"] == refusal.code


def test_84_a_full_quota_is_raised_too(slow: Client) -> None:
    refusal = refused(slow.create, content(SLOW_QUOTA + 100, "quota"))
    assert refusal.type == expected_class(slow.driver, 429)
    assert (refusal.code, refusal.status) == (429, "RESOURCE_EXHAUSTED")


def test_85_a_script_needs_an_address_and_a_key_and_nothing_else(sdk: Sdk, key: Key) -> None:
    script = {"python": PYTHON_SCRIPT, "js": JS_SCRIPT}[sdk.language] % {"document": document(80, "script")}
    environment: dict[str, Any] = {"GOOGLE_GEMINI_BASE_URL": key.address, "GEMINI_API_KEY": key.secret}
    ran = subprocess.run(
        sdk.running(script),
        cwd=sdk.folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.lower().split()) == (0, ["true"] * 3), ran.stderr
