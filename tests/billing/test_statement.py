from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from billing.closing import close_month
from billing.corrections import correct
from billing.meters import Meter
from billing.periods import Period
from billing.report import Query, Sums, report
from billing.statement import TOP_CACHES, MonthState, Statement, add_up, month_period, statement
from core.errors import InvalidArgument, LedgerConflict
from models.cache import Cache
from models.ledger_entry import Account, EntryKind, LedgerEntry, append, list_entries
from models.project import get_project
from models.session import Database
from tests.billing.rows import (
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    bring_up_to_date,
    generate,
    write,
)

MARCH, APRIL, MAY = (datetime(2026, month, 1, tzinfo=UTC) for month in (3, 4, 5))
HOUR = timedelta(hours=1)
STORAGE = Meter.CACHE_STORAGE_TOKEN_SECONDS


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


def made(
    database: Database, project_id: str, month: str = "2026-03", *, zone: tzinfo = UTC, now: datetime = MAY
) -> Statement:
    with database.read() as session:
        return statement(session, get_project(session, project_id), month, zone, now)


def fill(session: Session, project: str) -> None:
    """Two caches with hits, a request without a cache, and another project that has nothing to do with it."""
    add_cache(session, project, "used", tokens=5000, end=after(3600))
    write(session, project, "used", tokens=5000)
    add_cache(session, project, "idle", tokens=9000, start=after(60), end=after(90_000))
    write(session, project, "idle", tokens=9000, at=after(60))
    for number in range(40):
        at = after(100 + number)
        generate(session, project, f"r{number}", prompt=5010, cached=5000, cache_id="used", output=3, at=at)
    generate(session, project, "alone", prompt=77, implicit=64, output=5, at=after(4000))
    neighbour = add_project(session, "neighbour")
    add_cache(session, neighbour, "foreign", tokens=1_000_000, end=after(9000))
    write(session, neighbour, "foreign", tokens=1_000_000)


def figures(sums: Sums) -> dict[Meter, tuple[int, int, int, int]]:
    return {
        meter: (line.quantity, line.amount_nano_usd, line.without_cache_nano_usd, line.entry_count)
        for meter, line in sums.lines.items()
    }


class TestFigures:
    @pytest.mark.parametrize("is_posted", [True, False])
    def test_are_those_of_the_report(self, database: Database, project: str, *, is_posted: bool) -> None:
        with database.write() as session:
            fill(session, project)
        if is_posted:
            bring_up_to_date(database, MAY)
        found = made(database, project)
        with database.read() as session:
            wanted = report(session, Query(Period(MARCH, APRIL), project), MAY).total
        assert figures(found.sums) == figures(wanted)
        assert wanted.amount_nano_usd > 0
        for parts in (found.days.values(), [*found.caches.values(), found.without_cache]):
            assert figures(add_up(parts)) == figures(wanted)
        for meter, line in wanted.lines.items():
            lines = [each for each in found.prices if each.meter is meter]
            assert sum(each.quantity for each in lines) == line.quantity
            assert sum(each.amount_nano_usd for each in lines) == line.amount_nano_usd
        assert found.billed is not None
        assert found.billed.amount_nano_usd == wanted.amount_nano_usd

    def test_have_every_day_and_the_dearest_cache_first(self, database: Database, project: str) -> None:
        with database.write() as session:
            fill(session, project)
        found = made(database, project)
        assert list(found.days) == [date(2026, 3, day) for day in range(1, 32)]
        assert [day.day for day, sums in found.days.items() if sums.amount_nano_usd] == [1, 2]
        assert list(found.caches) == ["idle", "used"]
        assert found.caches["idle"].saved_nano_usd < 0 < found.caches["used"].saved_nano_usd
        assert found.caches["used"].hits == found.sums.hits == 40
        assert found.without_cache.lines[Meter.OUTPUT_TOKENS].quantity == 5

    def test_a_price_that_changes_makes_two_lines(self, database: Database) -> None:
        with database.write() as session:
            add_prices(session, book(), book({STORAGE: 500_000_000}, since=after(1000)))
            project = add_project(session, "p")
            add_cache(session, project, "c", tokens=1000, end=after(3000))
        old, new = made(database, project).prices
        assert (old.quantity, old.amount_nano_usd) == (1000 * 1000, 1000 * 1000 * 10**9 // (3600 * 10**6))
        assert (new.quantity, new.amount_nano_usd) == (1000 * 2000, 1000 * 2000 * 5 * 10**8 // (3600 * 10**6))
        assert old.price.effective_to == new.price.effective_from == after(1000)

    def test_storage_that_is_not_posted_counts_and_is_noted(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=10**6, end=after(9000))
        bring_up_to_date(database, after(3700))
        found = made(database, project, now=after(4000))
        (line,) = found.prices
        assert line.quantity == found.sums.lines[STORAGE].quantity == 4000 * 10**6
        assert len(found.total.notes) == 1
        assert found.days_so_far == [date(2026, 3, 1)]

    def test_what_was_taken_back_whole_has_no_line(self, database: Database, project: str) -> None:
        with database.write() as session:
            generate(session, project, "r", prompt=10, output=0)
            (entry,) = list_entries(session, project, 0, 10)
            correct(session, entry.id, 0, "goodwill", after(60))
        found = made(database, project)
        assert found.prices == []
        assert found.sums.amount_nano_usd == 0
        assert [each.note for each in found.corrections] == ["goodwill"]

    def test_names_the_first_caches_while_they_live(self, database: Database, project: str) -> None:
        with database.write() as session:
            for number in range(TOP_CACHES + 2):
                add_cache(session, project, f"c{number:02}", tokens=1000 - number, end=after(60))
                row = session.get(Cache, f"c{number:02}")
                assert row is not None
                row.display_name = "" if number == 1 else f"name {number}"
        found = made(database, project)
        assert list(found.caches) == [f"c{number:02}" for number in range(TOP_CACHES + 2)]
        assert found.names == {
            f"c{number:02}": f"name {number}" for number in range(TOP_CACHES) if number != 1
        }

    def test_hours_and_entries_that_differ_make_no_statement(self, database: Database, project: str) -> None:
        with database.write() as session:
            generate(session, project, "r", prompt=10, output=0)
        bring_up_to_date(database, MAY)
        with database.write() as session:
            session.execute(text("UPDATE ledger_hours SET amount_nano_usd = amount_nano_usd + 1"))
        with pytest.raises(
            LedgerConflict, match=r"input_tokens come to 10 for 1000 .* 1001\. .*billing verify"
        ):
            made(database, project)


class TestMonths:
    def test_an_empty_month_owes_nothing(self, database: Database, project: str) -> None:
        found = made(database, project, "2026-02")
        assert figures(found.sums) == figures(Sums())
        assert (len(found.days), found.prices, dict(found.caches), found.corrections) == (28, [], {}, [])
        assert (found.state, found.closed_at) == (MonthState.OPEN, None)
        assert found.billed is not None
        assert found.billed.amount_nano_usd == 0

    def test_a_month_to_come_has_not_begun(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", start=T0, end=after(90 * 86_400))
        found = made(database, project, "2026-04", now=after(3600))
        assert found.state is MonthState.TO_COME
        assert found.sums.amount_nano_usd == 0
        assert found.days_so_far == []

    def test_other_months_are_left_out(self, database: Database, project: str) -> None:
        with database.write() as session:
            for number, at in enumerate((MARCH - HOUR, MARCH, APRIL - HOUR, APRIL)):
                generate(session, project, f"r{number}", prompt=10**number, output=0, at=at)
        assert made(database, project).sums.lines[Meter.INPUT_TOKENS].quantity == 110

    @pytest.mark.parametrize(
        "month", ["2026-13", "2026-3", "March", "", "2026-03-01", "0000-01", "1969-12", "9999-01", "9999-12"]
    )
    def test_refuses_what_is_no_month(self, month: str) -> None:
        with pytest.raises(InvalidArgument, match=r"^month "):
            month_period(month, UTC)

    def test_a_month_of_a_zone_has_its_hours_and_is_not_what_is_billed(
        self, database: Database, project: str
    ) -> None:
        """Kiritimati is 14 hours ahead: its March begins on the last of February, and ends at ten of the 31st."""
        with database.write() as session:
            for number, at in enumerate(
                (MARCH - 15 * HOUR, MARCH - 14 * HOUR, APRIL - 15 * HOUR, APRIL - 14 * HOUR)
            ):
                generate(session, project, f"r{number}", prompt=10**number, output=0, at=at)
        found = made(database, project, zone=ZoneInfo("Pacific/Kiritimati"))
        assert found.sums.lines[Meter.INPUT_TOKENS].quantity == 110
        assert [day.day for day, sums in found.days.items() if sums.amount_nano_usd] == [1, 31]
        assert found.billed is None

    def test_a_zone_that_is_as_utc_is_billed_likewise(self, database: Database, project: str) -> None:
        assert made(database, project, zone=ZoneInfo("Atlantic/Reykjavik")).billed is not None


class TestBilled:
    """A charge of March that is corrected when March is closed is billed in April, for its own hour."""

    @pytest.fixture
    def corrected(self, database: Database, project: str) -> str:
        with database.write() as session:
            generate(session, project, "march", prompt=1000, output=0)
            generate(session, project, "april", prompt=50, output=0, at=APRIL)
            (entry, _) = list_entries(session, project, 0, 10)
            close_month(session, "2026-03", APRIL + HOUR)
            correct(session, entry.id, 700, "counted too much", APRIL + 2 * HOUR)
        return project

    def test_a_closed_month_is_billed_as_it_was_closed(self, database: Database, corrected: str) -> None:
        found = made(database, corrected)
        assert (found.state, found.closed_at) == (MonthState.CLOSED, APRIL + HOUR)
        assert found.billed is not None
        assert (found.sums.amount_nano_usd, found.billed.elsewhere) == (70_000, -30_000)
        assert found.billed.amount_nano_usd == 100_000
        assert [each.note for each in found.corrections] == ["counted too much"]

    def test_the_next_month_has_what_was_corrected(self, database: Database, corrected: str) -> None:
        found = made(database, corrected, "2026-04")
        assert found.billed is not None
        assert (found.sums.amount_nano_usd, found.billed.other_hours) == (5_000, -30_000)
        assert found.billed.amount_nano_usd == -25_000
        assert [each.note for each in found.corrections] == ["counted too much"]
        assert made(database, corrected, "2026-05").corrections == []

    def test_all_months_together_are_billed_what_was_charged(
        self, database: Database, corrected: str
    ) -> None:
        months = [
            made(database, corrected, month).billed for month in ("2026-02", "2026-03", "2026-04", "2026-05")
        ]
        with database.read() as session:
            charged = sum(each.amount_nano_usd for each in list_entries(session, corrected, 0, 10))
        assert sum(each.amount_nano_usd for each in months if each is not None) == charged == 75_000

    def test_the_neighbour_is_told_nothing(self, database: Database, corrected: str) -> None:
        with database.write() as session:
            neighbour = add_project(session, "neighbour")
        found = made(database, neighbour)
        assert (found.sums.amount_nano_usd, found.corrections) == (0, [])

    def test_credit_used_is_apart(self, database: Database, corrected: str) -> None:
        with database.write() as session:
            used = LedgerEntry(
                project_id=corrected,
                dedupe_key="credit",
                kind=EntryKind.CREDIT_USE,
                debit=Account.CREDIT,
                credit=Account.RECEIVABLE,
                hour=T0,
                period="2026-04",
                quantity=0,
                amount_nano_usd=1_234,
                without_cache_nano_usd=0,
                posted_at=T0,
            )
            append(session, used)
        march, april = made(database, corrected).billed, made(database, corrected, "2026-04").billed
        assert march is not None
        assert april is not None
        assert (march.credit, april.credit, april.amount_nano_usd) == (0, 1_234, -25_000)
