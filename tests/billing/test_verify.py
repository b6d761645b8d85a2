"""Where the books are right nothing is found; a single changed figure anywhere is."""

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from bench.database import unguarded
from billing import charges
from billing.meters import Meter
from billing.prices import store
from billing.verify import verify
from models.price import list_prices
from models.session import Database
from tests.billing.rows import (
    MODEL,
    T0,
    add_cache,
    add_project,
    after,
    book,
    bring_up_to_date,
    faults,
    generate,
    joined,
    write,
)

NOW = T0 + timedelta(hours=5)


def fill(database: Database) -> None:
    """Two projects with caches and generations whose prices leave remainders, all posted."""
    chance = random.Random(7)
    with database.write() as session:
        odd = dict.fromkeys(Meter, 6_999_881)
        store(session, joined(book(odd), book(odd, since=after(7000))), T0)
        for name in ("p", "q"):
            project_id = add_project(session, name)
            for number in range(5):
                cache_id = f"{name}{number}"
                tokens = chance.randrange(64, 9000)
                start, end = after(chance.random() * 5000), after(5000 + chance.random() * 9000)
                add_cache(session, project_id, cache_id, tokens=tokens, start=start, end=end)
                write(session, project_id, cache_id, tokens=tokens, at=start)
                for request in range(4):
                    generate(
                        session,
                        project_id,
                        f"{cache_id}.{request}",
                        prompt=tokens + 100 + chance.randrange(50),
                        cached=tokens,
                        implicit=chance.randrange(100),
                        cache_id=cache_id,
                        output=chance.randrange(100),
                        at=start,
                    )
            generate(session, project_id, f"{name}.alone", prompt=chance.randrange(500), output=3)
    bring_up_to_date(database, NOW)


@pytest.fixture
def busy(database: Database) -> Database:
    fill(database)
    return database


def test_finds_nothing_where_nothing_is_wrong(busy: Database) -> None:
    assert faults(busy, NOW) == []


def test_tells_how_far_it_is(busy: Database) -> None:
    told: list[float] = []
    with busy.read() as session:
        assert list(verify(session, NOW, progress=lambda _what, fraction: told.append(fraction))) == []
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("tampering", "check"),
    [
        ("UPDATE usage SET output_tokens = output_tokens + 1 WHERE id = 'p.alone'", "ledger_is_recomputed"),
        ("UPDATE usage SET cache_write_tokens = cache_write_tokens - 1 WHERE id = 'write:q4'", "hits_are"),
        (
            (
                "UPDATE usage SET input_tokens = input_tokens + 1, cache_read_tokens = cache_read_tokens - 1 "
                "WHERE id = 'p0.0'"
            ),
            "hits_are",
        ),
        ("UPDATE usage SET implicit_cache_tokens = implicit_cache_tokens + 1 WHERE id = 'p0.0'", "ledger_is"),
        ("UPDATE usage SET cache_id = 'p1' WHERE id = 'p0.0'", "ledger_is"),
        ("UPDATE usage SET key_id = 'proj_q_key' WHERE id = 'p.alone'", "ledger_is"),
        ("UPDATE usage SET state = 'VOID', is_posted = FALSE WHERE id = 'p.alone'", "ledger_is"),
        ("UPDATE usage SET is_posted = FALSE WHERE id = 'p.alone'", "owed_usage"),
        ("UPDATE usage SET occurred_at = '2026-03-03 00:00:00.000000+00:00' WHERE id = 'p0.0'", "ledger_is"),
        ("UPDATE usage SET created_at = '2026-03-01 11:00:00.000000+00:00' WHERE id = 'p0.0'", "hits_are"),
        ("DELETE FROM usage WHERE id = 'q.alone'", "ledger_is"),
        ("UPDATE storage_segments SET token_count = token_count + 1 WHERE cache_id = 'p0'", "segments_are"),
        (
            "UPDATE storage_segments SET ends_at = started_at, accrued_until = started_at WHERE cache_id = 'p0'",
            "segments_are",
        ),
        ("UPDATE storage_segments SET accrued_until = started_at WHERE cache_id = 'p0'", "ledger_is"),
        ("DELETE FROM storage_segments WHERE cache_id = 'p0'", "segments_are"),
        (
            "UPDATE prices SET nano_usd_per_million = nano_usd_per_million + 1000000 WHERE meter = 'output_tokens'",
            "ledger_is",
        ),
        (
            "UPDATE ledger_entries SET amount_nano_usd = amount_nano_usd + 1 WHERE id = (SELECT MIN(id) FROM ledger_entries)",
            "ledger_is",
        ),
        (
            "UPDATE ledger_entries SET amount_nano_usd = amount_nano_usd + 1 WHERE id = (SELECT MIN(id) FROM ledger_entries)",
            "hours_are",
        ),
        ("UPDATE ledger_entries SET without_cache_nano_usd = 0 WHERE meter = 'input_tokens'", "ledger_is"),
        ("DELETE FROM ledger_entries WHERE id = (SELECT MIN(id) FROM ledger_entries)", "ledger_is"),
        ("UPDATE ledger_hours SET quantity = quantity + 1 WHERE cache_id = 'p0'", "hours_are"),
        ("DELETE FROM ledger_hours WHERE cache_id = 'p0'", "hours_are"),
        (
            "UPDATE billing_periods SET state = 'CLOSED', closed_at = '2026-04-01 00:00:00+00:00', amount_nano_usd = 1",
            "closed_periods",
        ),
    ],
)
def test_finds_a_row_that_was_changed(busy: Database, tampering: str, check: str) -> None:
    with busy.write() as session, unguarded(session):
        if session.get_bind().dialect.name == "sqlite":
            tampering = tampering.replace("+00:00'", "'")
        session.execute(text(tampering))
    assert [fault for fault in faults(busy, NOW) if fault.startswith(check)]


def test_finds_storage_that_nobody_posted(database: Database) -> None:
    with database.write() as session:
        store(session, book(), T0)
        add_cache(session, add_project(session, "p"), "c", end=after(3600))
    assert faults(database, after(3600 * 3)) == []
    (fault,) = faults(database, after(3600 * 3 + 1))
    assert fault.startswith("storage_is_posted: cache c")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("token_charge", lambda tokens, price: -(-tokens * price // 10**6)),
        (
            "storage_charge",
            lambda tokens, elapsed, price: -(-tokens * len(elapsed) * price // (3600 * 10**6)),
        ),
        # Each hour rounded for itself.
        ("storage_charge", lambda tokens, elapsed, price: tokens * len(elapsed) * price // (3600 * 10**6)),
    ],
)
def test_finds_another_way_to_round(
    database: Database, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., int]
) -> None:
    monkeypatch.setattr(charges, name, wrong)
    fill(database)
    found = faults(database, NOW)
    assert found
    assert all("nano-USD" in each for each in found)


def test_finds_a_price_that_is_gone(busy: Database) -> None:
    """As if it had begun later: the ledger keeps it from being removed."""
    with busy.write() as session:
        for price in list_prices(session):
            if price.meter == Meter.CACHE_READ_TOKENS and price.effective_to is not None:
                price.effective_from = price.effective_to - timedelta(seconds=1)
        session.flush()
    assert any(f"no price of cache_read_tokens for {MODEL}" in fault for fault in faults(busy, NOW))
