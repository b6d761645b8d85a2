from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from billing import usage
from billing.closing import close_month
from billing.corrections import correct, correct_amount
from billing.meters import CREATE_METERS, Meter
from billing.prices import store
from core.errors import EntryNotFound, InvalidArgument, PeriodNotOver
from models.billing_period import PeriodState, list_periods
from models.ledger_entry import EntryKind, LedgerEntry, list_corrections, list_entries
from models.session import Database
from tests.billing.rows import (
    T0,
    add_cache,
    add_prices,
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

APRIL = datetime(2026, 4, 1, tzinfo=UTC)


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


def close(database: Database, month: str, now: datetime) -> int | None:
    with database.write() as session:
        return close_month(session, month, now).amount_nano_usd


def wait_for_waiters(session: Session, count: int) -> None:
    """Until so many units wait for what this one holds. SQLite lets nobody else begin, and so nobody wait for another."""
    if session.get_bind().dialect.name != "postgresql":
        return
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    end = monotonic() + 10
    while session.scalars(waiting).one() < count:
        assert monotonic() < end, "nobody waits"
        session.execute(text("SELECT pg_stat_clear_snapshot(), pg_sleep(0.01)"))


class TestCloseMonth:
    def test_keeps_what_the_month_came_to(self, database: Database, project: str) -> None:
        with database.write() as session:
            generate(session, project, "march", prompt=10, output=0, at=APRIL - timedelta(seconds=1))
            generate(session, project, "april", prompt=77, output=0, at=APRIL)
        assert close(database, "2026-03", APRIL + timedelta(hours=1)) == 1000
        with database.read() as session:
            assert [(each.month, each.state) for each in list_periods(session)] == [
                ("2026-03", PeriodState.CLOSED),
                ("2026-04", PeriodState.OPEN),
            ]

    def test_closing_again_changes_nothing(self, database: Database, project: str) -> None:
        for hours in (1, 2, 3):
            assert close(database, "2026-03", APRIL + timedelta(hours=hours)) == 0
        with database.read() as session:
            (period,) = list_periods(session)
        assert period.closed_at == APRIL + timedelta(hours=1)

    @pytest.mark.parametrize("now", [T0, APRIL - timedelta(seconds=1), APRIL + timedelta(minutes=59)])
    def test_refuses_a_month_that_is_not_over(self, database: Database, project: str, now: datetime) -> None:
        with pytest.raises(PeriodNotOver, match="from 2026-04-01T01:00Z on"):
            close(database, "2026-03", now)

    def test_refuses_while_storage_of_it_is_not_posted(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", start=T0, end=APRIL + timedelta(days=9))
        now = APRIL + timedelta(hours=2)
        with pytest.raises(PeriodNotOver, match=r"not .* posted yet \(c\)|Not all .* \(c\)"):
            close(database, "2026-03", now)
        bring_up_to_date(database, now)
        assert close(database, "2026-03", now)

    def test_refuses_a_month_that_nothing_can_be_owed_for(self, database: Database) -> None:
        for is_there in (False, True):
            if is_there:
                with database.write() as session:
                    add_project(session, "p")
            with pytest.raises(InvalidArgument, match="before there was any project") as caught:
                close(database, "2026-02", APRIL)
            assert caught.value.field == "month"
        for month in ("March", "0000-01", "0001-01", "1969-12", "9999-12"):
            with pytest.raises(InvalidArgument, match="month must be"):
                close(database, month, APRIL)
        with database.read() as session:
            assert list_periods(session) == []

    def test_two_at_once_close_it_once(self, database: Database, project: str) -> None:
        """Both meet a month that somebody is posting into."""
        with ThreadPoolExecutor(2) as closers:
            with database.write() as session:
                generate(session, project, "r", prompt=10, output=0)
                closing = [
                    closers.submit(close, database, "2026-03", APRIL + timedelta(hours=hours))
                    for hours in (1, 2)
                ]
                wait_for_waiters(session, 2)
            assert [each.result() for each in closing] == [1000, 1000]

    def test_what_ends_late_is_billed_when_it_ends(self, database: Database, project: str) -> None:
        """A request that ran across the end of the month belongs to the month in which it ended."""
        with database.write() as session:
            reserve(session, project, "long", prompt=10, at=APRIL - timedelta(seconds=5))
        assert close(database, "2026-03", APRIL + timedelta(hours=1)) == 0
        with database.write() as session:
            assert usage.finalise(session, "long", 1, 0, APRIL + timedelta(hours=2), "STOP")
            (entry,) = list_entries(session, None, 0, 10)
        assert (entry.kind, entry.period) == (EntryKind.USAGE, "2026-04")
        assert faults(database, APRIL + timedelta(hours=3)) == []


class TestCorrect:
    @pytest.fixture
    def entry_id(self, database: Database, project: str) -> int:
        """A charge of 1,000 tokens of input, 100,000 nano-USD, in a month that is closed."""
        with database.write() as session:
            generate(session, project, "r", prompt=1000, output=0)
        close(database, "2026-03", APRIL + timedelta(hours=1))
        with database.read() as session:
            return list_entries(session, None, 0, 10)[0].id

    def correct(self, database: Database, entry_id: int, quantity: int, note: str = "why") -> LedgerEntry:
        with database.write() as session:
            return correct(session, entry_id, quantity, note, APRIL + timedelta(days=1))

    def test_appends_the_difference_to_the_open_month(self, database: Database, entry_id: int) -> None:
        made = self.correct(database, entry_id, 700)
        assert (made.kind, made.corrects_id, made.note) == (EntryKind.CORRECTION, entry_id, "why")
        assert (made.quantity, made.amount_nano_usd, made.without_cache_nano_usd) == (-300, -30_000, -30_000)
        assert (made.period, made.hour) == ("2026-04", T0)
        assert faults(database, APRIL + timedelta(days=2)) == []

    def test_later_corrections_start_from_earlier_ones(self, database: Database, entry_id: int) -> None:
        differences = [self.correct(database, entry_id, quantity).quantity for quantity in (0, 1, 1000, 999)]
        assert differences == [-1000, 1, 999, -1]
        with database.read() as session:
            found = list_entries(session, None, 0, 10)
        assert sum(each.amount_nano_usd for each in found) == 99_900
        assert [each.dedupe_key for each in found[1:]] == [f"correction:{entry_id}:{n}" for n in (1, 2, 3, 4)]
        bring_up_to_date(database, APRIL + timedelta(days=2))
        assert faults(database, APRIL + timedelta(days=2)) == []

    def test_every_charge_comes_to_what_its_price_says(self, database: Database, project: str) -> None:
        """Of each meter, after several corrections: also where the first quantity was rounded down to nothing."""
        since = after(-60)
        prices = dict.fromkeys(Meter, 1_900_000) | {Meter.CACHE_READ_TOKENS: 300_000}
        with database.write() as session:
            store(session, joined(book(), book(prices, since=since)), after(-120))
            add_cache(session, project, "c", tokens=3, end=after(7))
            write(session, project, "c", tokens=3)
            generate(session, project, "r", prompt=9, cached=3, cache_id="c", implicit=3, output=3)
            # What held when it was accepted stays, whatever holds when it is corrected.
            store(session, joined(book(), book(prices, since=since), book(since=after(60))), after(30))
        bring_up_to_date(database, after(7200))
        with database.read() as session:
            charges = list_entries(session, None, 0, 10)
        assert {each.meter for each in charges} == set(Meter)
        for entry in charges:
            assert entry.meter is not None
            for quantity in (0, 1_000, 3_000_000):
                self.correct(database, entry.id, quantity)
            with database.read() as session:
                stands = [entry, *list_corrections(session, entry.id)]
            meter = Meter(entry.meter)
            unit = 3600 * 10**6 if meter is Meter.CACHE_STORAGE_TOKEN_SECONDS else 10**6
            without = 0 if meter in CREATE_METERS else 5_700_000
            assert sum(each.quantity for each in stands) == 3_000_000
            assert sum(each.amount_nano_usd for each in stands) == 3_000_000 * prices[meter] // unit
            assert sum(each.without_cache_nano_usd for each in stands) == without
        assert faults(database, APRIL + timedelta(days=2)) == []

    def test_a_wrong_price_is_corrected_by_the_amount(self, database: Database, entry_id: int) -> None:
        with database.write() as session:
            made = correct_amount(session, entry_id, 40_000, "the price was wrong", APRIL)
        assert (made.quantity, made.amount_nano_usd, made.without_cache_nano_usd) == (0, -60_000, -60_000)
        assert (made.kind, made.corrects_id, made.hour) == (EntryKind.CORRECTION, entry_id, T0)
        with pytest.raises(InvalidArgument, match="comes to 40000 already"), database.write() as session:
            correct_amount(session, entry_id, 40_000, "again", APRIL)
        again = self.correct(database, entry_id, 1000)  # the quantity it has, at its price
        assert (again.quantity, again.amount_nano_usd, again.without_cache_nano_usd) == (0, 60_000, 60_000)
        self.correct(database, entry_id, 0)
        with pytest.raises(InvalidArgument, match="which costs nothing"), database.write() as session:
            correct_amount(session, entry_id, 1, "for nothing", APRIL)
        assert faults(database, APRIL + timedelta(days=2)) == []

    def test_refuses_what_changes_nothing_or_makes_no_sense(self, database: Database, entry_id: int) -> None:
        with pytest.raises(InvalidArgument, match="comes to 1000 already"):
            self.correct(database, entry_id, 1000)
        for note in (" ", "n" * 1_001, "n\0", "n\udcff"):
            with pytest.raises(InvalidArgument) as caught:
                self.correct(database, entry_id, 1, note)
            assert caught.value.field == "note"
        with pytest.raises(EntryNotFound):
            self.correct(database, entry_id + 7, 1)
        made = self.correct(database, entry_id, 5)
        with pytest.raises(EntryNotFound):
            self.correct(database, made.id, 1)

    def test_no_correction_makes_sums_that_the_database_cannot_hold(
        self, database: Database, entry_id: int
    ) -> None:
        # At 0.0001 USD a token the amount is what is too large, from 10**13 on.
        for wrong in (-1, 10**13 + 1, 10**15 + 1, 9 * 10**16, 2**63, 10**30):
            with pytest.raises(InvalidArgument, match=r"quantity .*10{15}") as caught:
                self.correct(database, entry_id, wrong)
            assert caught.value.field == "quantity"
        for wrong in (-1, 10**15 + 1, 2**63):
            with (
                pytest.raises(InvalidArgument, match=r"amount_nano_usd .*10{15}"),
                database.write() as session,
            ):
                correct_amount(session, entry_id, wrong, "why", APRIL)
        assert self.correct(database, entry_id, 10**13).amount_nano_usd == 10**15 - 100_000
        bring_up_to_date(database, APRIL + timedelta(days=2))
        assert faults(database, APRIL + timedelta(days=2)) == []
