"""Caches that end while requests use them: those finish, no new one begins, content and bill end at that instant."""

from collections.abc import Callable
from datetime import datetime

import pytest

from models.cache import Cache, CacheState
from models.usage import UsageState
from tests.e2e.books import Books, quantities
from tests.e2e.customer import GONE, Customer, document, read_answer, reason_of
from tests.e2e.home import Home
from tests.e2e.processes import wait_until
from tests.e2e.shared import Shared

LONG = 400


def expire(customer: Customer, name: str) -> None:
    customer.patch(name, ttl="0.1s")
    wait_until(lambda: customer.get(name).status_code == 403, "it expires")


def delete(customer: Customer, name: str) -> None:
    customer.delete(name)


@pytest.mark.long
@pytest.mark.trap("T37")
@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [(expire, CacheState.EXPIRED, "CACHE_EXPIRED"), (delete, CacheState.DELETED, "CACHE_DELETED")],
)
def test_a_stream_outlives_its_cache(
    end: Callable[[Customer, str], None], state: CacheState, reason: str, customer: Customer, shared: Shared
) -> None:
    books = shared.books
    held_before = shared.ballast.held_tokens()
    secret = f"end by {end.__name__}"
    name = customer.create(document(300, secret))["name"]
    undisturbed = customer.ask("Go on.", name, tokens=LONG)
    content = secret.encode(), books.token_bytes(name)
    assert shared.home.traces(*content)

    with customer.stream("Go on.", name, LONG) as chunks:
        first = next(chunks)
        end(customer, name)
        assert customer.refusal("And you?", name) == (403, reason)
        assert books.generations(customer.project_id)[-1].state is UsageState.RESERVED
        assert shared.ballast.held_tokens() > held_before
        rest = list(chunks)
    assert read_answer([first, *rest]) == undisturbed

    refused = customer.get(name)
    assert (refused.status_code, refused.json()["error"]["message"], reason_of(refused)) == (
        403,
        GONE,
        reason,
    )
    assert customer.names() == []
    wait_until(lambda: books.cache(name).state is state, "the row ends")
    wait_until(lambda: not shared.home.traces(*content), "the content is gone from disk")
    wait_until(lambda: shared.ballast.held_tokens() == held_before, "its memory is given back")

    row = books.cache(name)
    assert row.ended_at is not None
    if state is CacheState.EXPIRED:
        assert row.ended_at == row.expire_at
    (segment,) = books.segments(customer.project_id)
    assert (segment.started_at, segment.ends_at) == (row.activated_at, row.ended_at)
    assert [(each.state, each.output_tokens) for each in books.generations(customer.project_id)] == [
        (UsageState.FINAL, undisturbed.output_tokens)
    ] * 2
    bill = books.proven_bill(customer.address, customer.key)
    assert quantities(bill)["cache_storage_token_seconds"] == row.token_count * seconds(row)


def test_a_cache_that_expires_before_it_is_built_was_never_there(customer: Customer, books: Books) -> None:
    answer = customer.http.post(
        "/v1beta/cachedContents", json=customer.cache_body(document(3800, "too late"), ttl="0.25s")
    )
    assert (answer.status_code, reason_of(answer)) == (504, "DEADLINE_EXCEEDED")
    assert "longer ttl" in answer.json()["error"]["message"]
    (row,) = books.caches(customer.project_id)
    assert (row.state, row.failure, row.messages) == (CacheState.FAILED, "cache_expired", None)
    assert not books.usage(customer.project_id)
    assert not books.segments(customer.project_id)


@pytest.mark.trap("T37")
def test_expiry_waits_for_no_sweeper(home: Home) -> None:
    server = home.start(sweep_interval_seconds=60)
    customer = home.customer(server)
    name = customer.create(document(100, "unswept"))["name"]
    customer.ask("Are you there?", name)
    expire(customer, name)
    assert customer.refusal("Are you there?", name) == (403, "CACHE_EXPIRED")
    assert customer.names() == []
    row = home.books.cache(name)
    assert row.state is CacheState.ACTIVE
    (segment,) = home.books.segments(customer.project_id)
    assert segment.ends_at == row.expire_at
    first, second = (home.books.proven_bill(server.address, customer.key) for _ in range(2))
    assert first["amountNanoUsd"] == second["amountNanoUsd"] > 0
    assert server.terminate() == 0


def seconds(row: Cache) -> int:
    """Whole seconds of its life, as they are billed."""
    assert row.activated_at is not None
    assert row.ended_at is not None

    def second(at: datetime) -> datetime:
        return at.replace(microsecond=0)

    return int((second(row.ended_at) - second(row.activated_at)).total_seconds())
