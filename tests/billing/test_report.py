from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy.orm import Session

from billing import storage
from billing.meters import Meter
from billing.periods import Bucket, Period, parse_period, parse_zone
from billing.prices import store
from billing.report import Line, Query, Report, Subject, Sums, report
from core.errors import InvalidArgument, PriceMissing
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
    joined,
    write,
)

HOUR = timedelta(hours=1)
MONTH = timedelta(days=31)
STORAGE = Meter.CACHE_STORAGE_TOKEN_SECONDS


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


def bill(
    session: Session,
    *subjects: Subject,
    start: datetime = T0,
    end: datetime = T0 + MONTH,
    now: datetime = T0 + MONTH,
    project_id: str | None = None,
    bucket: Bucket | None = None,
    zone: tzinfo = UTC,
) -> Report:
    return report(session, Query(Period(start, end), project_id, subjects, bucket, zone), now)


def figures(sums: Sums) -> dict[Meter, tuple[int, int]]:
    return {
        meter: (line.quantity, line.amount_nano_usd) for meter, line in sums.lines.items() if line.quantity
    }


def fill(session: Session, project: str) -> None:
    """One cache of 5,000 tokens, kept for an hour, with two hits, and a request without a cache."""
    add_cache(session, project, "c", tokens=5000, start=T0, end=after(3600))
    write(session, project, "c", tokens=5000)
    generate(session, project, "r1", prompt=5020, cached=5000, cache_id="c", output=30, at=after(5))
    generate(
        session, project, "r2", prompt=5011, cached=5000, cache_id="c", implicit=1, output=32, at=after(6)
    )
    generate(session, project, "r3", prompt=5011, output=32, at=after(7))


WITH_CACHE = {
    Meter.CACHE_WRITE_TOKENS: (5000, 500_000),
    STORAGE: (5000 * 3600, 5_000_000),
    Meter.CACHE_READ_TOKENS: (10_000, 100_000),
    Meter.IMPLICIT_CACHE_READ_TOKENS: (1, 10),
    Meter.INPUT_TOKENS: (30, 3_000),
    Meter.OUTPUT_TOKENS: (62, 24_800),
}
WITHOUT = {Meter.INPUT_TOKENS: (5011, 501_100), Meter.OUTPUT_TOKENS: (32, 12_800)}


class TestSums:
    def test_an_empty_period_owes_nothing_and_has_every_meter(self, database: Database) -> None:
        with database.read() as session:
            empty = bill(session, Subject.PROJECT)
        assert empty.groups == {}
        assert empty.total.lines == {meter: Line() for meter in Meter}
        assert (empty.total.amount_nano_usd, empty.total.hit_rate, empty.notes) == (0, None, [])

    @pytest.mark.parametrize("is_rolled_up", [True, False])
    def test_sums_what_happened_by_cache_and_meter(
        self, database: Database, project: str, *, is_rolled_up: bool
    ) -> None:
        with database.write() as session:
            fill(session, project)
        if is_rolled_up:
            bring_up_to_date(database, T0 + MONTH)
        with database.read() as session:
            made = bill(session, Subject.CACHE)
        assert list(made.groups) == [("",), ("c",)]
        assert figures(made.groups["c",]) == WITH_CACHE
        assert figures(made.groups["",]) == WITHOUT
        assert (
            made.total.amount_nano_usd
            == sum(each.amount_nano_usd for each in made.groups.values())
            == 6_141_710
        )

    def test_says_what_the_same_would_have_cost_without_a_cache(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            fill(session, project)
            made = bill(session, Subject.CACHE)
        kept, other = made.groups["c",], made.groups["",]
        assert kept.without_cache_nano_usd == (5020 + 5011) * 100 + 24_800
        assert kept.saved_nano_usd == kept.without_cache_nano_usd - kept.amount_nano_usd < 0
        assert other.saved_nano_usd == 0
        assert (kept.hits, other.hits) == (2, 0)
        assert kept.hit_rate == pytest.approx(10_001 / 10_031)
        assert other.hit_rate == 0

    def test_each_grouping_comes_to_the_same_total(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "q")
            for owner in (project, other):
                add_cache(session, owner, f"c_{owner}", tokens=777, end=after(9000))
                for number in range(3):
                    at = after(3000 * number)
                    generate(
                        session,
                        owner,
                        f"{owner}{number}",
                        prompt=13 + number,
                        implicit=4 * number,
                        output=7,
                        at=at,
                    )
        bring_up_to_date(database, after(4000))
        with database.write() as session:
            generate(session, project, "later", prompt=13, output=7, at=after(8000))
            groupings: list[tuple[Sequence[Subject], Bucket | None]] = [
                ((), None),
                *(((subject,), None) for subject in Subject),
                *(((), bucket) for bucket in Bucket),
                (tuple(Subject), Bucket.HOUR),
            ]
            totals = [
                bill(session, *subjects, bucket=bucket, now=after(8500)) for subjects, bucket in groupings
            ]
        assert len({figure for made in totals for figure in [made.total.amount_nano_usd]}) == 1
        for made in totals:
            for meter in Meter:
                for name in ("quantity", "amount_nano_usd", "without_cache_nano_usd", "entry_count"):
                    parts = [getattr(sums.lines[meter], name) for sums in made.groups.values()]
                    assert sum(parts) == getattr(made.total.lines[meter], name)
            assert (
                sum(sums.provisional_nano_usd for sums in made.groups.values())
                == made.total.provisional_nano_usd
                > 0
            )

    def test_one_project_sees_only_its_own(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "q")
            for owner in (project, other):
                add_cache(session, owner, f"c_{owner}")
                generate(session, owner, f"r_{owner}", prompt=13, output=7)
            alone = bill(session, Subject.PROJECT, Subject.CACHE, project_id=other)
        assert list(alone.groups) == [(other, ""), (other, f"c_{other}")]

    def test_refuses_storage_that_has_no_price(self, database: Database) -> None:
        with database.write() as session:
            add_cache(session, add_project(session, "p"), "c")
            with pytest.raises(PriceMissing):
                bill(session)

    def test_refuses_a_reversed_and_a_naive_period(self) -> None:
        for start, end in ((T0, T0 - HOUR), (T0.replace(tzinfo=None), T0)):
            with pytest.raises(InvalidArgument):
                Period(start, end)


class TestBound:
    @pytest.mark.parametrize("is_rolled_up", [True, False])
    def test_more_is_refused_and_nothing_is_left_out(
        self, database: Database, project: str, *, is_rolled_up: bool
    ) -> None:
        """By the day, and read by the hour: what counts is what has to be read."""
        with database.write() as session:
            for number in range(7):
                generate(session, project, f"r{number}", prompt=10, output=5, at=T0 + number * HOUR)
        if is_rolled_up:
            bring_up_to_date(database, T0 + MONTH)
        query = Query(Period(T0, T0 + MONTH), bucket=Bucket.DAY)
        with database.read() as session:
            made = report(session, query, T0 + MONTH, most_rows=14)
            assert figures(made.total) == figures(report(session, query, T0 + MONTH).total)
            assert made.total.lines[Meter.INPUT_TOKENS].quantity == 70
            with pytest.raises(InvalidArgument, match=r"more than 13 sums .* shorter periods") as caught:
                report(session, query, T0 + MONTH, most_rows=13)
        assert caught.value.field == "start"


class TestPeriods:
    def test_hours_belong_to_the_period_in_which_they_start(self, database: Database, project: str) -> None:
        with database.write() as session:
            for number, seconds in enumerate((0, 3599, 3600)):
                generate(session, project, f"r{number}", prompt=10**number, output=0, at=after(seconds))

            def tokens(start: timedelta, end: timedelta) -> int:
                return bill(session, start=T0 + start, end=T0 + end).total.lines[Meter.INPUT_TOKENS].quantity

            assert tokens(0 * HOUR, 1 * HOUR) == 11
            assert tokens(1 * HOUR, 2 * HOUR) == 100
            assert tokens(0 * HOUR, HOUR / 2) == 11
            assert tokens(HOUR / 2, 2 * HOUR) == 100
            assert tokens(0 * HOUR, 0 * HOUR) == 0

    def test_periods_that_meet_share_nothing_and_lose_nothing(self, database: Database, project: str) -> None:
        with database.write() as session:
            fill(session, project)
            add_cache(session, project, "d", tokens=333, start=after(1000), end=after(9000.5))
            cuts = [T0, after(100), after(3600), after(5000), after(7201), after(99_999)]
            parts = [bill(session, start=a, end=b).total for a, b in pairwise(cuts)]
            whole = bill(session, start=cuts[0], end=cuts[-1]).total
        for meter in Meter:
            assert sum(part.lines[meter].quantity for part in parts) == whole.lines[meter].quantity
            assert (
                sum(part.lines[meter].amount_nano_usd for part in parts) == whole.lines[meter].amount_nano_usd
            )

    def test_a_day_is_that_of_the_zone(self, database: Database, project: str) -> None:
        kiritimati, los_angeles = ZoneInfo("Pacific/Kiritimati"), ZoneInfo("America/Los_Angeles")
        with database.write() as session:
            generate(
                session, project, "r", prompt=10, output=0, at=T0.replace(hour=9)
            )  # 23 h there, 1 h there
            generate(session, project, "s", prompt=20, output=0, at=T0.replace(hour=10))
            start = T0 - timedelta(days=2)

            def days(zone: tzinfo) -> dict[tuple[str, ...], int]:
                made = bill(session, start=start, bucket=Bucket.DAY, zone=zone)
                return {group: sums.lines[Meter.INPUT_TOKENS].quantity for group, sums in made.groups.items()}

            assert days(UTC) == {("2026-03-01",): 30}
            assert days(kiritimati) == {("2026-03-01",): 10, ("2026-03-02",): 20}
            assert days(los_angeles) == {("2026-03-01",): 30}

    @pytest.mark.parametrize(
        ("zone", "bucket", "start", "end", "is_noted"),
        [
            ("Asia/Kolkata", Bucket.DAY, "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z", True),
            ("Asia/Kolkata", Bucket.HOUR, "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z", True),
            ("Asia/Kolkata", None, "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z", False),
            ("Asia/Kolkata", None, "2026-03-01", "2026-04-01T00:00:00Z", True),
            ("Asia/Kathmandu", None, "2026-03-01T00:00:00Z", "2026-03-02", True),
            (
                "Asia/Kathmandu",
                Bucket.MONTH,
                "2025-03",
                "2025-04",
                True,
            ),  # nothing was charged, and the ends are cut
            ("Asia/Kathmandu", Bucket.MONTH, "2025-03-01T00:00:00Z", "2025-04-01T00:00:00Z", False),
            # Half an hour beside the hour in winter alone: no hour with a charge lies in two of its days.
            ("Australia/Lord_Howe", Bucket.DAY, "2026-02", "2026-12", False),
            ("Australia/Lord_Howe", None, "2026-02", "2026-08", True),
            ("Europe/Vienna", Bucket.DAY, "2026-03", "2026-04", False),
            ("UTC", Bucket.MONTH, "1970-01", "9998-12", False),
        ],
    )
    def test_hours_that_lie_in_two_days_are_noted(
        self,
        database: Database,
        project: str,
        zone: str,
        bucket: Bucket | None,
        start: str,
        end: str,
        *,
        is_noted: bool,
    ) -> None:
        """18:30 UTC is midnight in Kolkata: the hour from 18:00 on counts in the day that it starts in."""
        where = parse_zone(zone)
        period = parse_period(start, end, T0, where)
        with database.write() as session:
            generate(session, project, "r", prompt=10, output=0, at=T0.replace(hour=18, minute=45))
            made = bill(session, start=period.start, end=period.end, bucket=bucket, zone=where)
        if bucket is Bucket.DAY:
            assert [day for (day,) in made.groups] == ["2026-03-01" if "Howe" not in zone else "2026-03-02"]
        assert [zone in note for note in made.notes] == [True] * is_noted

    def test_a_period_of_centuries_looks_at_the_hours_with_charges_alone(
        self, database: Database, project: str
    ) -> None:
        asked: list[datetime | None] = []

        class Watched(tzinfo):
            def utcoffset(self, at: datetime | None) -> timedelta:
                asked.append(at)
                return timedelta(hours=5, minutes=30)

            def tzname(self, _: datetime | None) -> str:
                return "watched"

            def dst(self, _: datetime | None) -> timedelta:
                return timedelta(0)

        start, end = datetime(1970, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
        with database.write() as session:
            for number in range(3):
                generate(session, project, f"r{number}", prompt=10, output=5, at=T0 + number * HOUR)
            for bucket in (None, *Bucket):
                bill(session, *Subject, start=start, end=end, bucket=bucket, zone=Watched())
        assert len(asked) < 100

    def test_the_hour_that_comes_twice_is_two(self, database: Database, project: str) -> None:
        """In Vienna, 02:00 comes twice on 25 October 2026."""
        first = datetime(2026, 10, 25, 0, tzinfo=UTC)
        with database.write() as session:
            for number in range(2):
                generate(session, project, f"r{number}", prompt=1, output=0, at=first + number * HOUR)
            made = bill(
                session, start=first, end=first + 2 * HOUR, bucket=Bucket.HOUR, zone=ZoneInfo("Europe/Vienna")
            )
        assert list(made.groups) == [("2026-10-25T02:00+01:00",), ("2026-10-25T02:00+02:00",)]


class TestLivingCaches:
    def seconds(
        self, session: Session, now: datetime, start: datetime = T0, end: datetime = T0 + MONTH
    ) -> int:
        made = bill(session, now=now, start=start, end=end)
        quantity, rest = divmod(made.total.lines[STORAGE].quantity, 1000)
        assert rest == 0
        return quantity

    @pytest.mark.parametrize("posted_at", [None, 30, 3600, 7300])
    def test_are_charged_up_to_now_whatever_is_posted(
        self, database: Database, project: str, posted_at: float | None
    ) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000, start=after(0.9), end=after(8000.1))
        if posted_at is not None:
            bring_up_to_date(database, after(posted_at))
        with database.read() as session:
            assert self.seconds(session, after(7300.5)) == 7300
            assert self.seconds(session, after(99_999)) == 8000
            assert self.seconds(session, after(99_999), end=after(3600)) == 3600
            assert self.seconds(session, after(99_999), start=after(3600)) == 4400

    def test_what_is_not_posted_is_said_to_be_provisional(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=10**6, start=T0, end=after(8000))
        bring_up_to_date(database, after(3700))
        with database.read() as session:
            made = bill(session, now=after(3636))
        assert made.total.provisional_nano_usd == 36 * 10**9 // 3600
        assert made.total.amount_nano_usd == 3636 * 10**9 // 3600
        assert "not posted yet" in made.notes[0]

    def test_a_life_of_no_second_costs_nothing(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", start=after(5.2), end=after(5.2))
            add_cache(session, project, "d", start=after(5.2), end=after(5.9))
            assert bill(session, Subject.CACHE).groups == {}

    def test_deleting_stops_the_charge_at_that_second(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000, start=T0, end=after(100))
            storage.close(session, "c", after(20.99))
            assert self.seconds(session, T0 + MONTH) == 20

    def test_a_price_to_come_changes_no_bill_given(self, database: Database, project: str) -> None:
        dearer = book({STORAGE: 7_000_000_000}, since=after(40))
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000, start=T0, end=after(100))
            before = bill(session, now=after(39)).total.amount_nano_usd
            store(session, joined(book(), dearer), after(39))
            assert bill(session, now=after(39)).total.amount_nano_usd == before
            expected = 1000 * 40 * 10**9 // (3600 * 10**6) + 1000 * 60 * 7 * 10**9 // (3600 * 10**6)
            assert bill(session).total.amount_nano_usd == expected
