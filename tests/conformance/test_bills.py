"""What is owed, and what survives a crash. The books are the rows of the database, and the report that is made of them."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.cache import CacheState
from models.usage import UsageKind, UsageState
from tests.conformance.client import Client, content, instant, refused
from tests.conformance.servers import COMMON, SLOW_QUOTA, TINY, Host, Key, tiny_settings
from tests.e2e.books import quantities
from tests.e2e.customer import document, greedy, reason_of, user, without_cost
from tests.e2e.home import Home
from tests.e2e.processes import wait_until

CACHES, GENERATE = "/v1beta/cachedContents", f"/v1beta/models/{TINY}:generateContent"
HURRIED = {"x-server-timeout": "1"}


def whole_seconds(start: Any, end: Any) -> int:
    """Seconds as storage is billed: between the whole seconds of both ends."""
    return int(end.timestamp()) - int(start.timestamp())


def made(http: httpx.Client, tokens: int = 70, seed: str = "bill", **more: Any) -> dict[str, Any]:
    answer = http.post(CACHES, json={"model": TINY, "contents": content(tokens, seed), **more})
    assert answer.status_code == 200, answer.text
    cache: dict[str, Any] = answer.json()
    return cache


def test_27_more_tokens_than_a_project_may_cache_are_refused(slow: Client) -> None:
    first = slow.create(content(100, "first"))
    refusal = refused(slow.create, content(SLOW_QUOTA, "too much"))
    assert (refusal.code, refusal.status, refusal.reason) == (429, "RESOURCE_EXHAUSTED", "CACHE_QUOTA")
    (violation,) = refusal.detail("QuotaFailure")["violations"]
    assert str(SLOW_QUOTA) in violation["description"]
    books, project_id = slow.host.books, slow.key.project_id
    assert [f"cachedContents/{cache.id}" for cache in books.caches(project_id)] == [first["name"]]
    assert len(books.writes(project_id)) == len(books.segments(project_id)) == 1
    slow.create(content(100, "fits"))


def test_77_a_write_its_storage_and_a_row_for_each_request(client: Client) -> None:
    books, project_id = client.host.books, client.key.project_id
    cache = client.create(content(70, "ledger"), ttl="600s")
    tokens = cache["usageMetadata"]["totalTokenCount"]
    (write,) = books.writes(project_id)
    assert (write.kind, write.state, write.cache_write_tokens) == (UsageKind.CREATE, UsageState.FINAL, tokens)
    (segment,) = books.segments(project_id)
    row = books.cache(cache["name"])
    assert (segment.started_at, segment.ends_at) == (row.activated_at, row.expire_at)
    assert segment.token_count == tokens

    answers = [client.ask("Where?", cachedContent=cache["name"]), client.ask("Where?")]
    hit, miss = (answer["usageMetadata"] for answer in answers)
    first, second = books.generations(project_id)
    assert (first.state, first.cache_read_tokens) == (UsageState.FINAL, hit["cachedContentTokenCount"])
    assert first.input_tokens == hit["promptTokenCount"] - hit["cachedContentTokenCount"]
    assert first.output_tokens == hit["candidatesTokenCount"]
    assert (second.cache_read_tokens, second.input_tokens) == (0, miss["promptTokenCount"])

    client.delete(cache["name"])
    (segment,) = books.segments(project_id)
    assert segment.ends_at == books.cache(cache["name"]).ended_at


def test_77_a_hit_is_counted_on_the_cache(http: httpx.Client) -> None:
    name = made(http)["name"]
    asked = {"contents": [user("Where?")], "cachedContent": name, "generationConfig": greedy(2)}
    for hits in range(3):
        shown = http.get(f"/v1beta/{name}").json()
        assert (shown["hitCount"], shown["state"], shown["tier"]) == (hits, "ACTIVE", "RAM")
        assert http.post(GENERATE, json=asked).status_code == 200


def test_77_answers_and_caches_tell_what_they_cost(http: httpx.Client, tiny_host: Host, key: Key) -> None:
    name = made(http)["name"]
    asked = {"contents": [user("Where?")], "cachedContent": name, "generationConfig": greedy(2)}
    answer = http.post(GENERATE, json=asked).json()
    assert answer["cost"]["nanoUsdByMeter"] == tiny_host.books.cost(key.project_id, answer["responseId"])
    assert answer["cost"]["savedNanoUsd"] > 0
    shown = http.get(f"/v1beta/{name}").json()["cost"]["nanoUsdByMeter"]
    kept = shown.pop("cache_storage_token_seconds")
    assert shown == tiny_host.books.cost(key.project_id, f"write:{name.partition('/')[2]}")
    http.delete(f"/v1beta/{name}")
    bill = tiny_host.books.proven_bill(key.address, key.secret)
    assert 0 <= kept <= next(line["amountNanoUsd"] for line in bill["meters"] if "storage" in line["meter"])


def test_78_storage_ends_with_the_cache_to_the_second(http: httpx.Client, tiny_host: Host, key: Key) -> None:
    deleted = made(http, seed="deleted", ttl="86400s")
    shortened = made(http, seed="shortened", ttl="86400s")
    extended = made(http, seed="extended", ttl="1.5s")
    ends = {
        shortened["name"]: http.patch(f"/v1beta/{shortened['name']}", json={"ttl": "2s"}).json()[
            "expireTime"
        ],
        extended["name"]: http.patch(f"/v1beta/{extended['name']}", json={"ttl": "3s"}).json()["expireTime"],
    }
    time.sleep(1.1)
    http.delete(f"/v1beta/{deleted['name']}")
    books = tiny_host.books
    last = max(map(instant, ends.values()))
    wait_until(lambda: books.cache(extended["name"]).state is CacheState.EXPIRED, "the last has expired", 10)

    seconds = {}
    for cache in (deleted, shortened, extended):
        row = books.cache(cache["name"])
        ended = instant(ends[cache["name"]]) if cache["name"] in ends else row.ended_at
        (segment,) = [each for each in books.segments(key.project_id) if each.cache_id == row.id]
        assert segment.ends_at == ended
        seconds[cache["name"]] = whole_seconds(row.activated_at, ended) * row.token_count
    bill = books.proven_bill(key.address, key.secret)
    assert quantities(bill)["cache_storage_token_seconds"] == sum(seconds.values())
    assert last - instant(deleted["createTime"]) < timedelta(seconds=30)


def test_79_what_is_refused_or_fails_costs_nothing(http: httpx.Client, tiny_host: Host, key: Key) -> None:
    name = made(http, ttl="600s")["name"]
    http.delete(f"/v1beta/{name}")
    before = tiny_host.books.proven_bill(key.address, key.secret)["amountNanoUsd"]
    asked = {"contents": [user("Where?")], "cachedContent": name}
    cache = {"model": TINY, "contents": content(70, "79")}
    refusals = [
        http.post(CACHES, json={"model": TINY, "contents": [user("Short.")]}),
        http.post(CACHES, json={"model": TINY, "contents": content(5000, "large")}),
        http.post(CACHES, json={**cache, "model": "absent"}),
        http.post(CACHES, json={**cache, "ttl": "5m"}),
        http.post(CACHES, json={**cache, "foo": 1}),
        http.post(CACHES, json={"model": TINY, "contents": content(3000, "expired"), "ttl": "0.01s"}),
        http.post(GENERATE, json=asked),
        http.post(GENERATE, json={"contents": []}),
        http.post(GENERATE, json={"contents": content(5000, "large")}),
        http.get(f"/v1beta/{name}"),
    ]
    assert all(answer.status_code >= 400 for answer in refusals), [each.text for each in refusals]
    assert tiny_host.books.proven_bill(key.address, key.secret)["amountNanoUsd"] == before
    assert len(tiny_host.books.writes(key.project_id)) == 1
    assert {row.state for row in tiny_host.books.generations(key.project_id)} <= {UsageState.VOID}


def test_79_nor_does_a_create_that_was_too_slow(slow_host: Host) -> None:
    with slow_host.project() as key, key.http() as http:
        body = {"model": TINY, "contents": content(1900, "slow")}
        answer = http.post(CACHES, json=body, headers=HURRIED)
        assert (answer.status_code, reason_of(answer)) == (504, "DEADLINE_EXCEEDED")
        books = slow_host.books
        assert [row.state for row in books.caches(key.project_id)] == [CacheState.FAILED]
        assert (books.writes(key.project_id), books.segments(key.project_id)) == ([], [])
        assert books.proven_bill(key.address, key.secret)["amountNanoUsd"] == 0


def test_80_a_create_is_made_once_for_its_idempotency_key(client: Client) -> None:
    named = {"headers": {"Idempotency-Key": "once-and-no-more"}}
    contents = content(70, "once")
    first = client.create(contents, httpOptions=named)
    assert without_cost(client.create(contents, httpOptions=named)) == without_cost(first)
    other = refused(client.create, content(70, "other"), httpOptions=named)
    assert (other.code, other.status, other.reason) == (400, "INVALID_ARGUMENT", "IDEMPOTENCY_MISMATCH")
    client.delete(first["name"])
    assert client.create(contents, httpOptions=named)["name"] == first["name"]
    assert client.create(contents)["name"] != first["name"]
    books, project_id = client.host.books, client.key.project_id
    assert len(books.caches(project_id)) == len(books.writes(project_id)) == 2


def test_80_a_repeated_create_waits_for_the_first(slow_host: Host) -> None:
    with slow_host.project() as key, key.http() as http, ThreadPoolExecutor(2) as pool:
        body = {"model": TINY, "contents": content(1900, "in flight")}
        named = {"idempotency-key": "in-flight"}
        first = pool.submit(http.post, CACHES, json=body, headers=named)
        wait_until(lambda: slow_host.books.caches(key.project_id), "the first is under way")
        second = pool.submit(http.post, CACHES, json=body, headers=named)
        hurried = http.post(CACHES, json=body, headers=named | HURRIED)
        assert (hurried.status_code, hurried.json()["error"]["status"]) == (409, "ABORTED")
        assert first.result().status_code == second.result().status_code == 200
        assert without_cost(first.result().json()) == without_cost(second.result().json())
        assert len(slow_host.books.writes(key.project_id)) == 1


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> Iterator[Home]:
    home = Home(tmp_path, COMMON | tiny_settings(tiny_model, prefill_chunk_tokens=1))
    yield home
    home.close()


def test_81_a_crash_leaves_no_half_cache_and_moves_no_expiry(home: Home) -> None:
    server = home.start()
    customer, project_id = home.customer(server), home.books.project_id("default")
    kept = customer.create(document(70, "kept"), ttl="3600s")
    short = customer.create(document(70, "short"), ttl="6s")
    body = {"model": TINY, "contents": content(3500, "half")}
    with customer.begun(CACHES, body):
        wait_until(lambda: len(home.books.caches(project_id)) == 3, "the create is under way")
        server.kill()

    again = home.start()
    customer = home.customer(again)
    wait_until(lambda: customer.get(short["name"]).status_code == 403, "the short one has expired")
    assert customer.names() == [kept["name"]]
    assert customer.get(kept["name"]).json()["expireTime"] == kept["expireTime"]
    _, expired, half = home.books.caches(project_id)
    assert (half.state, half.messages) == (CacheState.FAILED, None)
    writes = {row.cache_id for row in home.books.writes(project_id)}
    segments = {segment.cache_id: segment for segment in home.books.segments(project_id)}
    assert writes == segments.keys() == {kept["name"].partition("/")[2], expired.id}
    assert segments[expired.id].ends_at == instant(short["expireTime"])
    home.books.proven_bill(again.address, home.operator_key)
    assert again.terminate() == 0


def test_82_the_rows_sum_to_the_bill(client: Client) -> None:
    names = [client.create(content(70 + 10 * number, f"sum {number}"))["name"] for number in range(2)]
    for name in (*names, None):
        named = {} if name is None else {"cachedContent": name}
        client.ask("Where?", maxOutputTokens=3, **named)
        client.stream("Where?", maxOutputTokens=3, **named)
    client.delete(names[0])
    books, project_id = client.host.books, client.key.project_id
    bill = books.proven_bill(client.key.address, client.key.secret)
    billed, rows = quantities(bill), books.usage(project_id)
    billed["cache_read_tokens"] += billed["implicit_cache_read_tokens"]
    for meter in ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"):
        assert billed[meter] == sum(getattr(row, meter) for row in rows) > 0
    assert bill["amountNanoUsd"] == sum(meter["amountNanoUsd"] for meter in bill["meters"]) > 0
