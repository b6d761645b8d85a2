from datetime import UTC, datetime, timedelta

import pytest

from billing import usage
from billing.closing import close_month
from billing.corrections import correct
from core.errors import EntryNotFound, InvalidArgument, PeriodNotOver
from models.billing_period import PeriodState, list_periods
from models.ledger_entry import EntryKind, LedgerEntry, list_entries
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
    reserve,
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

    @pytest.mark.parametrize("month", ["2026-13", "2026-3", "March", "", "2026-00", "٢٠٢٦-03"])
    def test_refuses_what_is_no_month(self, database: Database, month: str) -> None:
        with pytest.raises(InvalidArgument, match="month must be"):
            close(database, month, APRIL)

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

    def test_refuses_what_changes_nothing_or_makes_no_sense(self, database: Database, entry_id: int) -> None:
        with pytest.raises(InvalidArgument, match="comes to 1000 already"):
            self.correct(database, entry_id, 1000)
        with pytest.raises(InvalidArgument, match="cannot be negative"):
            self.correct(database, entry_id, -1)
        with pytest.raises(InvalidArgument, match="note must say why"):
            self.correct(database, entry_id, 1, " ")
        with pytest.raises(EntryNotFound):
            self.correct(database, entry_id + 7, 1)
        made = self.correct(database, entry_id, 5)
        with pytest.raises(EntryNotFound):
            self.correct(database, made.id, 1)
        assert after(0) == T0
