"""Where the books are right nothing is found; a single changed figure anywhere is."""

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from billing import charges, verify as verify_module
from billing.entry_checks import was_first_open
from billing.meters import Meter
from billing.prices import store
from billing.rating import storage_charge
from billing.verify import verify
from models.price import list_prices
from models.session import Database
from tests.billing.lawless import lawless, missed
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
    reserve,
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


TAMPERING = [
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
    # What a rule of the database would refuse, had nobody lifted it.
    ("UPDATE usage SET input_tokens = 5 WHERE id = 'write:q4'", "ledger_is"),
    ("UPDATE usage SET cache_id = 'gone' WHERE id = 'p0.0'", "hits_are"),
    ("UPDATE usage SET cache_id = NULL WHERE id = 'p0.0'", "hits_are"),
    (
        "UPDATE ledger_entries SET meter = 'nonsense' WHERE id = (SELECT MIN(id) FROM ledger_entries)",
        "meters_are_known",
    ),
    (
        "UPDATE ledger_entries SET meter = 'nonsense' WHERE id = (SELECT MIN(id) FROM ledger_entries)",
        "ledger_is",
    ),
    (
        "UPDATE ledger_entries SET debit = 'GRANTED' WHERE id = (SELECT MIN(id) FROM ledger_entries)",
        "accounts_are_of_their_kind",
    ),
    (
        "UPDATE ledger_entries SET credit = 'RECEIVABLE' WHERE id = (SELECT MIN(id) FROM ledger_entries)",
        "accounts_are_of_their_kind",
    ),
    ("UPDATE storage_segments SET project_id = 'proj_q' WHERE cache_id = 'p0'", "segments_are"),
    ("UPDATE storage_segments SET model = 'other' WHERE cache_id = 'p0'", "segments_are"),
    ("UPDATE storage_segments SET key_id = 'proj_q_key' WHERE cache_id = 'p0'", "segments_are"),
    ("UPDATE caches SET state = 'DELETED' WHERE id = 'p0'", "segments_are"),
    ("UPDATE caches SET activated_at = NULL WHERE id = 'p0'", "segments_are"),
    ("DELETE FROM caches WHERE id = 'p0'", "segments_are_lives: storage segment p0"),
    # Where something is billed.
    (
        "UPDATE ledger_entries SET period = '2026-04' WHERE id = (SELECT MIN(id) FROM ledger_entries)",
        "entries_are_billed",
    ),
    (
        "UPDATE ledger_entries SET period = '2026-02' WHERE id = (SELECT MIN(id) FROM ledger_entries)",
        "entries_are_billed",
    ),
    (
        "UPDATE ledger_entries SET kind = 'CORRECTION' WHERE id = (SELECT MIN(id) FROM ledger_entries)",
        "entries_are_billed",
    ),
    ("DELETE FROM billing_periods", "entries_are_billed"),
    # Numbers that are gone.
    ("UPDATE ledger_watermark SET entry_id = entry_id + 1", "hours_are_sums: the ledger ends"),
]


def test_finds_every_row_that_was_changed(busy: Database) -> None:
    with lawless(busy) as session:
        assert missed(session, TAMPERING, NOW) == []


@pytest.mark.parametrize(
    ("posted_in", "period", "closed", "is_right"),
    [
        ("2026-12", "2026-12", (), True),
        ("2026-12", "2026-12", ("2026-12",), True),  # closed since
        ("2026-12", "2027-01", ("2026-12",), True),  # a clock that was set back
        ("2026-12", "2027-02", ("2026-12", "2027-01"), True),
        ("2026-12", "2027-02", ("2026-12",), False),
        ("2026-12", "2027-01", (), False),
        ("2026-12", "2026-11", ("2026-11", "2026-12"), False),
    ],
)
def test_what_is_no_usage_of_an_open_month_is_billed_in_the_first_open_one(
    posted_in: str, period: str, closed: tuple[str, ...], is_right: bool
) -> None:
    posted_at = datetime.fromisoformat(f"{posted_in}-15T00:00:00Z")
    assert was_first_open(period, posted_at, set(closed)) is is_right


def test_finds_a_gap_where_the_database_leaves_none(busy: Database, kind: str) -> None:
    with lawless(busy) as session:
        last = "DELETE FROM ledger_entries WHERE id = (SELECT MIN(id) + 1 FROM ledger_entries)"
        assert missed(session, [(last, "no_entry_is_missing")], NOW) == (
            [] if kind == "sqlite" else [(last, "no_entry_is_missing")]
        )


def test_what_fails_is_told_and_hides_nothing(busy: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(session: Session) -> Iterator[str]:
        yield "something"
        session.execute(text("SELECT nothing FROM nowhere"))

    monkeypatch.setattr(verify_module, "_CHECKS", (broken, *verify_module._CHECKS))
    with lawless(busy) as session:
        session.execute(text("UPDATE usage SET is_posted = FALSE WHERE id = 'p.alone'"))
        session.execute(text("UPDATE usage SET state = 'nonsense' WHERE id = 'q.alone'"))
        found = [(each.check, each.what) for each in verify(session, NOW)]
    assert found[0] == ("broken", "something")
    assert found[1][0] == "broken"
    assert "it could not look at everything: " in found[1][1]
    assert ("owed_usage_is_posted", "usage p.alone: it is owed and not in the ledger") in found


def test_finds_a_request_that_nobody_settled(database: Database) -> None:
    with database.write() as session:
        store(session, book(), T0)
        reserve(session, add_project(session, "p"), "r", prompt=10)
    assert faults(database, T0 + timedelta(days=1, hours=1)) == []
    (fault,) = faults(database, T0 + timedelta(days=1, hours=1, microseconds=1))
    assert fault.startswith("reserved_usage_is_settled: usage r")


def test_finds_what_a_report_tells_wrongly_of_storage_to_be_posted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.write() as session:
        odd = dict.fromkeys(Meter, 6_999_881)
        store(session, joined(book(odd), book(odd, since=after(7000))), T0)
        for number, start in enumerate((0.5, 3000.9)):
            add_cache(
                session,
                add_project(session, f"p{number}"),
                f"c{number}",
                tokens=997,
                start=after(start),
                end=after(9000.1),
            )
    bring_up_to_date(database, after(3700))
    for now in (3600, 3700, 7000.5, 9000, 9001):  # also a clock that was set back
        assert faults(database, after(now)) == []
    right = storage_charge
    monkeypatch.setattr(charges, "storage_charge", lambda *facts: right(*facts) + 1)
    found = faults(database, after(7100))
    assert len(found) == 2 * 2  # of two caches, at two prices
    assert all(each.startswith("provisional_is_recomputed") and " told, " in each for each in found)


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
