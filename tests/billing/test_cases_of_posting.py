"""Public cases of charges that were lost, doubled or put into the wrong period, each through ours; docs/billing-cases.md lists all."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import URL, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from billing import usage
from billing.accrual import accrue
from billing.bookkeeping import keep_books, roll_up_posted
from billing.charges import storage_charges, usage_charges
from billing.closing import close_month
from billing.ledger import post
from billing.limits import list_status, set_limit
from billing.meters import Meter
from billing.periods import Period
from billing.prices import load_prices
from billing.self_test import check_posting
from core.errors import LedgerBroken, PriceMissing, SpendLimit
from models import schema
from models.base import Base
from models.billing_period import list_periods
from models.ledger_entry import EntryKind, newest_settled_id
from models.ledger_hour import roll_up
from models.session import Database
from models.storage_segment import find_segments
from models.usage import UsageState, find_usage
from tests.billing.bills import USD, bill, entries, quantities, total
from tests.billing.rows import (
    PRICES,
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    bring_up_to_date,
    faults,
    generate,
    reserve,
    write,
)
from tests.fakes.clock import ManualClock

APRIL = datetime(2026, 4, 1, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
BEFORE_LEDGER = "5e0d9a3c7b18"


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


@pytest.fixture
def homes(database: Database) -> Iterator[Sequence[Database]]:
    """The database as several processes have it: they share no connection, and nothing in memory."""
    homes = [Database(database._engine.url, pool_size=4) for _ in range(3)]
    yield homes
    for home in homes:
        home.dispose()


def at_once(*works: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result()


def test_a_migration_does_not_change_what_was_kept_so_far(empty_url: URL) -> None:
    """getlago/lago-api#2118: the level that was carried over was wrong after a migration. The bill of a database that goes back
    to before the ledger and comes up again is the same, and reconciles before and after.
    """
    database = Database(empty_url, pool_size=2)
    schema.upgrade(database)
    with database.write() as session:
        add_prices(session, book())
        project_id = add_project(session, "p")
        add_cache(session, project_id, "c", tokens=777, start=after(0.5), end=after(9000))
        write(session, project_id, "c", tokens=777, at=after(0.5))
        generate(
            session, project_id, "r", prompt=800, cached=777, implicit=5, cache_id="c", output=3, at=after(7)
        )
    bring_up_to_date(database, after(5000))
    before = quantities(bill(database, now=after(5000))), total(database, now=after(5000))
    assert faults(database, after(5000)) == []
    schema.downgrade(database, BEFORE_LEDGER)
    schema.upgrade(database)
    bring_up_to_date(database, after(5000))
    assert (quantities(bill(database, now=after(5000))), total(database, now=after(5000))) == before
    assert faults(database, after(5000)) == []
    database.dispose()


def test_duplicates_are_not_counted_until_a_store_has_merged_them(
    database: Database, project: str, homes: Sequence[Database]
) -> None:
    """getlago/lago-api#4725, getlago/lago-api#5359, getlago/lago-api#5416, getlago/lago-api#4260: a store that removes duplicates
    some time counted them meanwhile. Ours are refused as they are written, whoever writes at once.
    """
    with database.write() as session:
        reserve(session, project, "r", prompt=10)
        row = find_usage(session, "r")
        assert row is not None
        session.expunge(row)
        row.occurred_at = T0
        charges = usage_charges(row, load_prices(session))

    def work(home: Database) -> None:
        with home.write() as session:
            post(session, charges, T0)

    at_once(*(partial(work, home) for home in homes))
    assert [entry.dedupe_key for entry in entries(database)] == ["r:input_tokens"]
    assert total(database, now=T0) == 1_000
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(
            text(
                "INSERT INTO ledger_entries (project_id, dedupe_key, kind, debit, credit, meter, price_id, key_id, model, hour, "
                "period, quantity, amount_nano_usd, without_cache_nano_usd, posted_at) SELECT project_id, dedupe_key, kind, debit, "
                "credit, meter, price_id, key_id, model, hour, period, quantity, 1, 1, posted_at FROM ledger_entries"
            )
        )


def test_what_was_accepted_is_not_left_out_of_the_bill(database: Database, project: str) -> None:
    """getlago/lago#637: events were accepted with 200 and never summed. A settled request is in the next report, before anything is
    rolled up; and an owed row that the ledger lacks is found.
    """
    with database.write() as session:
        generate(session, project, "r", prompt=10, output=0)
    assert total(database, now=T0) == 1_000
    with database.write() as session:
        reserve(session, project, "lost", prompt=10)
        session.execute(
            text(
                "UPDATE usage SET state = 'FINAL', occurred_at = created_at, end_reason = 'STOP' WHERE id = 'lost'"
            )
        )
    assert "owed_usage_is_posted: usage lost: it is owed and not in the ledger" in faults(database, after(1))
    bring_up_to_date(database, after(60))
    assert total(database, now=after(60)) == 2_000


def test_parts_of_a_second_do_not_split_a_bill_in_two(database: Database, project: str) -> None:
    """openmeterio/openmeter#3149: periods that began within a second made two invoices of one. Storage has whole seconds and whole
    hours: however often and at whatever moment it is posted, an hour of a cache is one entry.
    """
    with database.write() as session:
        add_cache(session, project, "c", tokens=1000, start=after(0.9), end=after(7200.1))
    for seconds in (3599.999999, 3600.000001, 3600.5, 7200.05, 7200.1, 7200.9):
        with database.write() as session:
            accrue(session, after(seconds))
    assert [(entry.hour, entry.quantity) for entry in entries(database)] == [
        (T0, 3_600_000),
        (T0 + HOUR, 3_600_000),
    ]
    assert total(database, now=after(9999)) == 2_000_000


def test_an_instant_at_the_edge_picks_the_right_lines(database: Database, project: str) -> None:
    """openmeterio/openmeter#2191: lines were picked as of the wrong instant. Periods are half-open: what occurs a second before
    an edge belongs to the one, what occurs at it or a second after to the other, and nothing to both.
    """
    with database.write() as session:
        for name, at in (("a", APRIL - SECOND), ("b", APRIL), ("c", APRIL + SECOND)):
            generate(session, project, name, prompt=10 ** (ord(name) - ord("a")), output=0, at=at)
    march, april = Period(T0, APRIL), Period(APRIL, APRIL + 24 * HOUR)
    assert quantities(bill(database, period=march)) == {Meter.INPUT_TOKENS: 1}
    assert quantities(bill(database, period=april)) == {Meter.INPUT_TOKENS: 110}
    assert [(entry.period, entry.quantity) for entry in entries(database)] == [
        ("2026-03", 1),
        ("2026-04", 10),
        ("2026-04", 100),
    ]


def test_what_is_late_is_late_and_what_is_in_time_is_not(database: Database, project: str) -> None:
    """openmeterio/openmeter#4179: the test for what came after the cut-off had stored it before. Here the month is seen open
    while the first is posted, and closed while the second is.
    """
    now = APRIL + 2 * HOUR
    with database.write() as session:
        generate(session, project, "in time", prompt=10, output=0, at=APRIL - SECOND)
        reserve(session, project, "late", prompt=100, at=APRIL - SECOND)
        row = find_usage(session, "late")
        assert row is not None
        session.expunge(row)
    assert [(entry.kind, entry.period) for entry in entries(database)] == [(EntryKind.USAGE, "2026-03")]
    with database.write() as session:
        assert close_month(session, "2026-03", now).amount_nano_usd == 1_000
    with database.write() as session:
        assert [each.state.value for each in list_periods(session)] == ["CLOSED"]
        row.occurred_at = APRIL - SECOND
        assert post(session, usage_charges(row, load_prices(session)), now) == 1
    late = entries(database)[1]
    assert (late.kind, late.period, late.hour) == (EntryKind.CORRECTION, "2026-04", APRIL - HOUR)
    with database.read() as session:
        assert list_periods(session)[0].amount_nano_usd == 1_000


def test_a_failure_before_the_commit_loses_no_spend(database: Database, project: str) -> None:
    """BerriAI/litellm#33872, BerriAI/litellm#35531: a queue was emptied before its rows were committed. Row and charge are one unit: it
    fails whole, and the same end can be told again.
    """
    with database.write() as session:
        reserve(session, project, "r", prompt=10)

    def fail() -> None:
        with database.write() as session:
            assert usage.finalise(session, "r", 1, 3, after(1), "STOP")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert entries(database) == []
    with database.write() as session:
        row = find_usage(session, "r")
        assert row is not None
        assert row.state is UsageState.RESERVED
        assert usage.finalise(session, "r", 1, 3, after(2), "STOP")
    assert total(database, now=after(2)) == 10 * 100 + 3 * 400


def test_sums_do_not_drift_apart_between_processes(
    database: Database, project: str, homes: Sequence[Database]
) -> None:
    """BerriAI/litellm#28247, #30460, #34238 and #30039: counters beside the database grew or fell between processes. What is owed, and
    what is left of a limit, is only in the database: several that charge at once, each with its own connections, see one sum.
    """
    with database.write() as session:
        set_limit(session, project, None, hard_nano_usd=100_000, soft_nano_usd=None, now=T0)

    def work(home: Database) -> None:
        for number in range(4):
            with home.write() as session:
                generate(session, project, f"r{homes.index(home)}:{number}", prompt=10, output=0)

    at_once(*(partial(work, home) for home in homes))
    for home in homes:
        with home.read() as session:
            (status,) = list_status(session, project, T0)
        assert (status.spent_nano_usd, status.held_nano_usd, status.left_nano_usd) == (12_000, 0, 88_000)
        bring_up_to_date(home, after(60))
        assert total(home, now=after(60)) == 12_000
    with pytest.raises(SpendLimit), homes[1].write() as session:
        reserve(session, project, "too much", prompt=881)
    assert faults(database, after(60)) == []


def test_twelve_dollars_do_not_become_twenty_four_when_an_end_is_told_again(
    database: Database, project: str
) -> None:
    """aws-samples/sample-agentic-ai-acceleration-kr#79: a message that was handled before it was acknowledged came again, and 12 USD
    became 24. The end of a request counts once, its charge is posted once, and what is rolled up is only what was appended.
    """
    tokens = 12 * USD * 10**6 // PRICES[Meter.OUTPUT_TOKENS]
    with database.write() as session:
        reserve(session, project, "r", prompt=0)
    for delivery in range(3):
        with database.write() as session:
            assert usage.finalise(session, "r", 1, tokens, after(1), "STOP") == (delivery == 0)
            row = find_usage(session, "r")
            assert row is not None
            post(session, usage_charges(row, load_prices(session)), after(1))
        bring_up_to_date(database, after(60))
        assert total(database, now=after(60)) == 12 * USD
    assert faults(database, after(60)) == []


def test_five_servers_do_not_post_the_same_hour_five_times(
    database: Database, project: str, homes: Sequence[Database]
) -> None:
    """BerriAI/litellm#7389: each of five processes sent the spend report. Scheduled work has keys made of the facts: several that keep
    the books at once, each with its own connections, and one that works from what it read long before, post and roll up each hour once.
    """
    with database.write() as session:
        for number in range(7):
            add_cache(session, project, f"c{number}", tokens=1000, start=T0, end=after(99 * 3600))
        generate(session, project, "r", prompt=10, output=0)
    with homes[0].read() as session:
        outdated = find_segments(session, [f"c{number}" for number in range(7)])
    at_once(*(partial(keep_books, home, ManualClock(after(3600))) for home in homes))
    with homes[0].write() as session:
        accrue(session, after(2 * 3600), limit=3)
    with homes[0].write() as session:
        newest = newest_settled_id(session)
    with ThreadPoolExecutor(1) as pool, homes[0].write() as session:
        roll_up(session, newest)
        meanwhile = pool.submit(roll_up_posted, homes[1])
        assert wait([meanwhile], timeout=0.1).not_done, "it waits for the first"
    at_once(*(partial(keep_books, home, ManualClock(after(5 * 3600))) for home in homes))
    with homes[0].write() as session:
        prices = load_prices(session)
        again = [
            charge
            for segment in outdated
            for charge in storage_charges(segment, segment.accrued_until, after(5 * 3600), prices)
        ]
        assert len(again) == 7 * 5
        assert post(session, again, after(5 * 3600)) == 0
    assert len(entries(database)) == 7 * 5 + 1
    assert total(database, now=after(5 * 3600)) == 7 * 5 * 1_000_000 + 1_000
    assert faults(database, after(5 * 3600)) == []


def test_no_configuration_turns_charging_off_silently(
    database: Database, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BerriAI/litellm#19163: a combination of settings stopped spend from being written, and nothing said so. A server charges a probe
    before it serves, reads it in the ledger and takes it back: whatever keeps charges from the ledger stops the start. And what
    cannot be charged does not become owed, and fails where it can be seen.
    """
    clock = ManualClock(after(1))
    with database.write() as session:
        reserve(session, project, "r", prompt=10)
        before = rows(session)
    check_posting(database, clock)
    for target, broken in (
        ("billing.usage.post", lambda *_, **__: 0),
        ("billing.usage.usage_charges", lambda *_: []),
        ("billing.charges.token_charge", lambda *_: 0),
        ("billing.usage._charge", lambda *_: None),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(target, broken)
            with pytest.raises(LedgerBroken, match="is not charged"):
                check_posting(database, clock)
    with swallowing(database), pytest.raises(LedgerBroken, match="has put nothing there"):
        check_posting(database, clock)
    with database.write() as session:
        assert rows(session) == before
        session.execute(text("DELETE FROM prices"))
    with pytest.raises(PriceMissing), database.write() as session:
        usage.finalise(session, "r", 1, 3, after(1), "STOP")
    with database.read() as session:
        row = find_usage(session, "r")
        assert row is not None
        assert row.state is UsageState.RESERVED


def rows(session: Session) -> dict[str, int]:
    tables = Base.metadata.sorted_tables
    return {table.name: session.scalars(select(func.count()).select_from(table)).one() for table in tables}


@contextmanager
def swallowing(database: Database) -> Iterator[None]:
    """A trigger that somebody added, under which the ledger takes nothing and says nothing."""
    is_postgresql = database._engine.dialect.name == "postgresql"
    if is_postgresql:
        making = [
            "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
            "CREATE TRIGGER swallow BEFORE INSERT ON ledger_entries FOR EACH ROW EXECUTE FUNCTION swallow()",
        ]
        removing = "DROP FUNCTION swallow() CASCADE"
    else:
        making = [
            "CREATE TRIGGER swallow BEFORE INSERT ON ledger_entries BEGIN SELECT RAISE(IGNORE); END",
        ]
        removing = "DROP TRIGGER swallow"
    with database.write() as session:
        for statement in making:
            session.execute(text(statement))
    try:
        yield
    finally:
        with database.write() as session:
            session.execute(text(removing))
