"""A server that stops, in whatever way, and starts again: what was promised still holds, and costs nothing more."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from models.cache import CacheState
from models.usage import UsageState
from tests.e2e.books import quantities
from tests.e2e.customer import document, reason_of
from tests.e2e.home import Home
from tests.e2e.processes import wait_until

QUESTION = "What is left?"


@pytest.mark.parametrize("ending", ["terminate", "kill"])
def test_live_caches_answer_again_and_ended_ones_do_not(ending: str, home: Home) -> None:
    server = home.start()
    assert server.project_key
    assert server.operator_key
    customer, project_id = home.customer(server), home.books.project_id("default")
    kept = [customer.create(document(words, f"kept {words}"))["name"] for words in (100, 300)]
    expired = customer.create(document(100, "expired"))["name"]
    deleted = customer.create(document(100, "deleted"))["name"]
    contents = [text.encode() for text in ("(expired)", "(deleted)")] + [home.books.token_bytes(expired)]
    answers = {name: customer.ask(QUESTION, name) for name in kept}
    customer.delete(deleted)
    customer.patch(expired, ttl="0.2s")
    if ending == "terminate":
        assert server.terminate() == 0
        assert not (home.data_dir / "pid").exists()
    else:
        server.kill()
    assert home.traces(b"(kept 300)")
    writes, segments = home.books.writes(project_id), home.books.segments(project_id)

    again = home.start()
    assert (again.project_key, again.operator_key) == (None, None)
    customer = home.customer(again)
    assert sorted(customer.names()) == sorted(kept)
    assert {name: customer.ask(QUESTION, name) for name in kept} == answers
    assert customer.refusal(QUESTION, expired) == (403, "CACHE_EXPIRED")
    assert customer.refusal(QUESTION, deleted) == (403, "CACHE_DELETED")
    wait_until(lambda: not home.traces(*contents), "what has ended is gone from disk")
    wait_until(lambda: "rebuilt" in again.log() or "found" in again.log(), "the log tells of its KV")
    assert set(rebuilt(again.log())) <= set(kept)

    # A rebuild leaves no row: the same writes, the same storage, and an answer costs what it cost before.
    assert [row.id for row in home.books.writes(project_id)] == [row.id for row in writes]
    assert [(each.cache_id, each.started_at, each.ends_at) for each in home.books.segments(project_id)] == [
        (each.cache_id, each.started_at, each.ends_at) for each in segments
    ]
    asked = home.books.generations(project_id)
    assert [row.state for row in asked] == [UsageState.FINAL] * 4
    assert [measured(row) for row in asked[:2]] == [measured(row) for row in asked[2:]]
    bill = home.books.proven_bill(again.address, home.operator_key)
    assert quantities(bill)["cache_write_tokens"] == sum(row.cache_write_tokens for row in writes)
    assert again.terminate() == 0


@pytest.mark.trap("T23")
def test_what_lies_on_disk_is_not_computed_again(home: Home) -> None:
    server = home.start()
    customer = home.customer(server)
    kept, ended = (customer.create(document(700, word))["name"] for word in ("kept", "ended"))
    answer = customer.ask(QUESTION, kept)
    files = home.data_dir / "kv"
    wait_until(lambda: len(list(files.glob("*.kv"))) >= 4, "both caches are written")
    server.kill()

    again = home.start()
    customer = home.customer(again)
    assert customer.ask(QUESTION, kept) == answer
    assert rebuilt(again.log()) == []
    shown = json.loads(home.command("models", "show", "--json", "--metrics-url", again.metrics_address))
    assert (shown["rebuilds"], shown["lostTokens"]) == ({"asked": 0, "background": 0}, 0)
    assert shown["promotedTokens"]["disk"] == home.books.cache(kept).token_count
    assert [(each["kind"], each["tier"]) for each in shown["timeToFirstToken"]] == [("explicit", "disk")]
    customer.delete(ended)
    wait_until(lambda: len(list(files.glob("*.kv"))) == 2, "the files of what has ended are gone")
    assert again.terminate() == 0

    without = home.start(kv_disk_bytes=0)
    assert home.customer(without).ask(QUESTION, kept) == answer
    assert rebuilt(without.log()) == [kept]
    assert not list(files.glob("*.kv"))
    assert without.terminate() == 0


def test_what_is_damaged_on_disk_is_computed_again_and_costs_nothing(home: Home) -> None:
    server = home.start()
    customer, project_id = home.customer(server), home.books.project_id("default")
    name = customer.create(document(700, "damaged"))["name"]
    answer = customer.ask(QUESTION, name)
    files = home.data_dir / "kv"
    wait_until(lambda: len(list(files.glob("*.kv"))) == 2, "the cache is written")
    server.kill()
    largest = max(files.glob("*.kv"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    before = home.books.usage(project_id)

    again = home.start()
    assert home.customer(again).ask(QUESTION, name) == answer
    assert rebuilt(again.log()) == [name]
    shown = json.loads(home.command("models", "show", "--json", "--metrics-url", again.metrics_address))
    assert shown["rejectedFiles"]["corrupt"] == sum(shown["rejectedFiles"].values()) == 1
    assert shown["rebuilds"] == {"asked": 1, "background": 0}
    assert shown["lostTokens"] == home.books.cache(name).token_count // 64 * 64
    assert [(each["kind"], each["tier"]) for each in shown["timeToFirstToken"]] == [("explicit", "rebuilt")]
    *same, asked = home.books.usage(project_id)
    assert [row.id for row in same] == [row.id for row in before]
    assert [asked.kind, *measured(asked)] == [before[-1].kind, *measured(before[-1])]
    home.books.proven_bill(again.address, home.operator_key)
    assert again.terminate() == 0


@pytest.mark.long
def test_what_is_asked_for_is_rebuilt_first_also_for_who_cannot_wait(home: Home) -> None:
    server = home.start(kv_disk_bytes=0)
    customer, project_id = home.customer(server), home.books.project_id("default")
    older = customer.create(document(1800, "older"))["name"]
    started = time.monotonic()
    newer = customer.create(document(1800, "newer"))["name"]
    build_seconds = time.monotonic() - started
    answers = {name: customer.ask(QUESTION, name) for name in (older, newer)}
    server.kill()

    # Steps so small that a build takes about three seconds, on whatever machine.
    again = home.start(kv_disk_bytes=0, prefill_chunk_tokens=max(1, int(16 * build_seconds / 3)))
    customer = home.customer(again)
    hurried = customer.http.post(
        customer.path("generateContent"),
        json=customer.body(QUESTION, newer),
        headers={"x-server-timeout": "1"},
    )
    assert (hurried.status_code, reason_of(hurried)) == (504, "DEADLINE_EXCEEDED")
    assert rebuilt(again.log()) == []
    # Its rebuild goes on, and before that of the older one, which was first in the queue.
    assert customer.ask(QUESTION, newer) == answers[newer]
    assert rebuilt(again.log()) == [newer]

    # Whoever asked before a cache ended gets his answer, be it not even rebuilt by then.
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(customer.ask, QUESTION, older)
        wait_until(lambda: len(home.books.generations(project_id)) == 5, "the request is there")
        customer.delete(older)
        assert customer.refusal(QUESTION, older) == (403, "CACHE_DELETED")
        assert rebuilt(again.log()) == [newer]
        assert asked.result() == answers[older]
    held = home.books.cache(newer).token_count
    wait_until(lambda: customer.held_tokens() < held + 64, "only the other cache is held")

    late = customer.http.post(
        "/v1beta/cachedContents",
        json=customer.cache_body(document(1800, "late")),
        headers={"x-server-timeout": "1"},
    )
    assert (late.status_code, reason_of(late)) == (504, "DEADLINE_EXCEEDED")
    assert home.books.caches(project_id)[-1].failure == "deadline_exceeded"

    assert [(row.state, row.output_tokens) for row in home.books.generations(project_id)] == [
        (UsageState.FINAL, 8),
        (UsageState.FINAL, 8),
        (UsageState.VOID, 0),
        (UsageState.FINAL, 8),
        (UsageState.FINAL, 8),
    ]
    assert len(home.books.writes(project_id)) == 2
    home.books.proven_bill(again.address, home.operator_key)
    assert again.terminate() == 0


def test_an_answer_that_was_cut_off_by_a_kill_is_not_owed(home: Home) -> None:
    server = home.start()
    customer, project_id = home.customer(server), home.books.project_id("default")
    name = customer.create(document(300, "cut off"))["name"]
    answer = customer.ask(QUESTION, name, tokens=50)
    with customer.stream(QUESTION, name, 3000) as chunks:
        assert len(list(islice(chunks, 3))) == 3
        server.kill()
    row = home.books.generations(project_id)[-1]
    assert (row.state, row.output_tokens) == (UsageState.RESERVED, 0)

    again = home.start()
    row = home.books.generations(project_id)[-1]
    assert (row.state, row.output_tokens, row.end_reason) == (UsageState.VOID, 0, "WORKER_LOST")
    assert home.customer(again).ask(QUESTION, name, tokens=50) == answer
    bill = home.books.proven_bill(again.address, home.operator_key)
    assert quantities(bill)["output_tokens"] == 2 * answer.output_tokens
    assert again.terminate() == 0


@pytest.mark.long
def test_a_kill_in_the_midst_of_a_create_leaves_all_of_a_cache_or_nothing(home: Home) -> None:
    slow = {"prefill_chunk_tokens": 2}
    server = home.start(**slow)
    project_id = home.books.project_id("default")

    def states() -> list[CacheState]:
        return [row.state for row in home.books.caches(project_id)]

    def is_pending() -> bool:
        return CacheState.PENDING in states()

    def is_computed_in_part() -> bool:
        # Computed in turn with the build: it has advanced when this has its answer.
        return is_pending() and bool(customer.ask("Are you busy?", None, tokens=20).text)

    def is_active() -> bool:
        return CacheState.ACTIVE in states()

    expected: list[CacheState] = []
    for instant in (lambda: True, is_pending, is_computed_in_part, is_active):
        customer = home.customer(server)
        body = customer.cache_body(document(600, f"create {len(expected)}"))
        with customer.begun("/v1beta/cachedContents", body):
            wait_until(instant, "the instant of the kill")
            server.kill()
        server = home.start(**({} if instant is is_active else slow))
        expected.append(CacheState.ACTIVE if instant is is_active else CacheState.FAILED)
        assert_whole_or_nothing(home)

    assert states() in (expected, expected[1:])  # the first may not have been written at all
    *failed, active = home.books.caches(project_id)
    customer = home.customer(server)
    assert {row.failure for row in failed} == {"worker_lost"}
    for row in failed:
        refused = customer.get(f"cachedContents/{row.id}")
        assert (refused.status_code, reason_of(refused)) == (403, "CACHE_NOT_FOUND")
    wait_until(lambda: not home.traces(*(f"(create {n})".encode() for n in range(3))), "content is gone")

    text = document(600, "create 3")
    assert customer.names() == [f"cachedContents/{active.id}"]
    assert customer.ask(QUESTION, customer.names()[0]).text == customer.ask(QUESTION, None, text).text
    bill = home.books.proven_bill(server.address, home.operator_key)
    assert quantities(bill)["cache_write_tokens"] == active.token_count
    assert server.terminate() == 0


def assert_whole_or_nothing(home: Home) -> None:
    """Every cache is active, paid for and stored, or failed, with neither a price nor content."""
    project_id = home.books.project_id("default")
    rows = home.books.caches(project_id)
    active = [row.id for row in rows if row.state is CacheState.ACTIVE]
    assert [row.cache_id for row in home.books.writes(project_id)] == active
    assert [segment.cache_id for segment in home.books.segments(project_id)] == active
    for row in rows:
        assert row.state in {CacheState.ACTIVE, CacheState.FAILED}
        assert (row.messages is None) == (row.state is CacheState.FAILED)


def rebuilt(log: str) -> list[str]:
    """Names of the caches that the log says were rebuilt, in order."""
    return [f"cachedContents/{cache_id}" for cache_id in re.findall(r"message=rebuilt .*cache_id=(\w+)", log)]


def measured(row: object) -> tuple[int, ...]:
    names = ("prompt_tokens", "input_tokens", "cache_read_tokens", "output_tokens")
    return tuple(getattr(row, name) for name in names)
