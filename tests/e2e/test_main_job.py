"""The main job: cache a text with the stock client, ask of it, see what it costs."""

from datetime import datetime
from math import floor

import pytest
from google.genai import Client, errors, types

from models.cache import CacheState
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState
from tests.e2e.books import Books, quantities
from tests.e2e.customer import MODEL, Customer, document, read_answer
from tests.e2e.shared import Shared
from workers.engine.blocks import BLOCK_TOKENS

QUESTION = "Where do the boats wait?"
GENERATION_PROMPT_TOKENS = 4


def turn(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def config(cached_content: str | None = None) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(temperature=0, max_output_tokens=12, cached_content=cached_content)


@pytest.mark.parametrize("version", ["v1beta", "v1", "v1alpha"])
def test_create_ask_extend_delete_and_pay(version: str, customer: Customer, books: Books) -> None:
    text = document(300, version)
    with customer.sdk(version) as client:
        cache = client.caches.create(
            model=MODEL,
            config=types.CreateCachedContentConfig(contents=[turn(text)], ttl="300s", display_name="boats"),
        )
        name, size = str(cache.name), cached_tokens(cache)
        assert client.caches.get(name=name) == cache
        plain = client.models.generate_content(
            model=MODEL, contents=[turn(text), turn(QUESTION)], config=config()
        )
        answer = client.models.generate_content(model=MODEL, contents=QUESTION, config=config(name))
        chunks = list(
            client.models.generate_content_stream(model=MODEL, contents=QUESTION, config=config(name))
        )
        array = customer.http.post(
            f"/{version}/models/{MODEL}:streamGenerateContent", json=customer.body(QUESTION, name, tokens=12)
        )

        assert plain.text
        assert answer.text == plain.text
        assert "".join(chunk.text or "" for chunk in chunks) == plain.text
        assert len(chunks) > 1
        assert read_answer(array.json()).text == plain.text

        counted = client.models.count_tokens(model=MODEL, contents=[turn(text), turn(QUESTION)])
        prompt = (counted.total_tokens or 0) + GENERATION_PROMPT_TOKENS
        produced = counts(plain)[2]
        told = [counts(each) for each in (plain, answer, chunks[-1])]
        assert 0 < produced <= 12

        longer = client.caches.update(name=name, config={"ttl": "900s"})
        assert longer.expire_time is not None
        assert cache.expire_time is not None
        assert longer.expire_time > cache.expire_time
        assert list(client.caches.list()) == [longer]
        client.caches.delete(name=name)
        assert list(client.caches.list()) == []
        assert_gone(client, name)

    rows = books.generations(customer.project_id)
    implicit = [row.implicit_cache_tokens for row in rows]
    assert implicit[0] == size // BLOCK_TOKENS * BLOCK_TOKENS, "who names no cache finds its whole blocks"
    named = (0, size, size, size)
    read = [one + other for one, other in zip(named, implicit, strict=True)]
    assert [(row.state, row.prompt_tokens, row.cache_read_tokens, row.output_tokens) for row in rows] == [
        (UsageState.FINAL, prompt, each, produced) for each in read
    ]
    assert told == [(prompt, each, produced) for each in read[:3]]
    last = read_answer(array.json()).usage
    assert (last["cachedContentTokenCount"], last["implicitCachedTokenCount"]) == (read[3], implicit[3])
    (write,) = books.writes(customer.project_id)
    assert (write.state, write.cache_write_tokens) == (UsageState.FINAL, size)
    row = books.cache(name)
    assert (row.state, row.messages, row.prefix_text) == (CacheState.DELETED, None, None)
    (segment,) = books.segments(customer.project_id)
    assert (segment.started_at, segment.ends_at) == (row.activated_at, row.ended_at)

    bill = books.proven_bill(customer.address, customer.key)
    assert quantities(bill) == {
        "input_tokens": 4 * prompt - sum(read),
        "cache_read_tokens": sum(named),
        "implicit_cache_read_tokens": sum(implicit),
        "cache_write_tokens": size,
        "output_tokens": 4 * produced,
        "cache_storage_token_seconds": size * whole_seconds(segment),
    }
    assert bill["amountNanoUsd"] == by_hand([*rows, write], segment)
    assert {group["project"] for group in bill["groups"]} == {customer.project_id}


def test_a_client_with_another_model_hard_coded(customer: Customer, books: Books) -> None:
    hard_coded = "gemini-2.5-flash"
    with customer.sdk() as client:
        cache = client.caches.create(
            model=hard_coded, config=types.CreateCachedContentConfig(contents=[turn(document(100, "alias"))])
        )
        answers = [
            client.models.generate_content(model=model, contents=QUESTION, config=config(str(cache.name)))
            for model in (hard_coded, f"models/{hard_coded}", MODEL)
        ]
        described = client.models.get(model=hard_coded)
    assert len({answer.text for answer in answers}) == 1
    assert cache.model == f"models/{MODEL}"
    assert answers[0].model_version == MODEL
    assert described.input_token_limit == 4095
    assert {row.model for row in books.usage(customer.project_id)} == {MODEL}


def test_a_stop_sequence_is_neither_sent_nor_owed(customer: Customer, books: Books) -> None:
    name = customer.create(document(100, "stop"))["name"]
    whole = customer.ask(QUESTION, name, tokens=12)
    stop = whole.text[len(whole.text) // 2 :][:6]
    body = customer.body(QUESTION, name, tokens=12)
    body["generationConfig"]["stopSequences"] = [stop]
    answer = read_answer([customer.http.post(customer.path("generateContent"), json=body).json()])
    assert (answer.text, answer.finish_reason) == (whole.text[: whole.text.index(stop)], "STOP")
    assert 0 < answer.output_tokens < whole.output_tokens
    assert books.generations(customer.project_id)[-1].output_tokens == answer.output_tokens


def test_the_log_tells_neither_texts_nor_keys(customer: Customer, shared: Shared) -> None:
    cache = customer.create(document(100, "a secret text"))
    customer.http.get("/v1beta/cachedContents", params={"key": customer.key})
    answer = customer.ask("What is a secret question?", cache["name"])
    log = shared.server.log()
    assert "POST" in log
    for secret in ("a secret", customer.key, answer.text.strip()):
        assert secret not in log


def cached_tokens(cache: types.CachedContent) -> int:
    assert cache.usage_metadata is not None
    assert cache.usage_metadata.total_token_count is not None
    return cache.usage_metadata.total_token_count


def counts(answer: types.GenerateContentResponse) -> tuple[int, int, int]:
    """Prompt, cached and output tokens."""
    usage = answer.usage_metadata
    assert usage is not None
    return (
        usage.prompt_token_count or 0,
        usage.cached_content_token_count or 0,
        usage.candidates_token_count or 0,
    )


def assert_gone(client: Client, name: str) -> None:
    with pytest.raises(errors.ClientError) as got:
        client.caches.get(name=name)
    with pytest.raises(errors.ClientError) as asked:
        client.models.generate_content(model=MODEL, contents=QUESTION, config=config(name))
    assert got.value.code == asked.value.code == 403


def whole_seconds(segment: StorageSegment) -> int:
    def second(at: datetime) -> int:
        return floor(at.timestamp())

    return second(segment.ends_at) - second(segment.started_at)


def by_hand(rows: list[Usage], segment: StorageSegment) -> int:
    """At the example prices: nano-USD a token, and for a million tokens kept one hour."""
    tokens = sum(
        100 * row.input_tokens
        + 10 * row.cache_read_tokens
        + 100 * row.cache_write_tokens
        + 400 * row.output_tokens
        for row in rows
    )
    return tokens + segment.token_count * whole_seconds(segment) * 10**9 // (3600 * 10**6)
