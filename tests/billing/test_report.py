from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from billing import storage, usage
from billing.meters import Meter
from billing.price_book import PriceBook
from billing.prices import store
from billing.report import CacheBill, Line, ProjectBill, Report, report
from core.errors import InvalidArgument, PriceMissing
from models.session import Database
from tests.billing.rows import (
    PRICES,
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    generate,
    reserve,
    write,
)

TICK = timedelta(microseconds=1)
MONTH = timedelta(days=31)
STORAGE = Meter.CACHE_STORAGE_TOKEN_SECONDS


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


def bill(
    session: Session,
    start: datetime = T0,
    end: datetime = T0 + MONTH,
    now: datetime = T0 + MONTH,
    project_id: str | None = None,
) -> Report:
    return report(session, start=start, end=end, now=now, project_id=project_id)


def figures(lines: tuple[Line, ...]) -> dict[Meter, tuple[int, int]]:
    return {line.meter: (line.quantity, line.amount_nano_usd) for line in lines if line.quantity}


def check_sums(above: Report | ProjectBill, below: Sequence[ProjectBill | CacheBill]) -> None:
    assert above.amount_nano_usd == sum(each.amount_nano_usd for each in below)
    for index, line in enumerate(above.lines):
        assert line.quantity == sum(each.lines[index].quantity for each in below)
        assert line.amount_nano_usd == sum(each.lines[index].amount_nano_usd for each in below)
        assert line.implicit_quantity == sum(each.lines[index].implicit_quantity for each in below)


class TestReport:
    def test_an_empty_period_owes_nothing_and_lists_every_meter(self, database: Database) -> None:
        with database.read() as session:
            empty = bill(session)
        assert empty.projects == ()
        assert empty.lines == tuple(Line(meter, 0, 0) for meter in Meter)
        assert empty.amount_nano_usd == 0

    def test_sums_a_caches_life_by_meter(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=5000, start=T0, end=after(3600))
            write(session, project, "c", tokens=5000)
            generate(session, project, "r1", prompt=5020, cached=5000, cache_id="c", output=30, at=after(5))
            generate(session, project, "r2", prompt=5011, cached=5000, cache_id="c", output=32, at=after(6))
            generate(session, project, "r3", prompt=5011, output=32, at=after(7))
            whole = bill(session)
        (owner,) = whole.projects
        cached, uncached = owner.caches
        assert cached.cache_id == "c"
        assert figures(cached.lines) == {
            Meter.CACHE_WRITE_TOKENS: (5000, 500_000),
            STORAGE: (5000 * 3600, 5_000_000),
            Meter.CACHE_READ_TOKENS: (10_000, 100_000),
            Meter.INPUT_TOKENS: (31, 3_100),
            Meter.OUTPUT_TOKENS: (62, 24_800),
        }
        assert uncached.cache_id is None
        assert figures(uncached.lines) == {
            Meter.INPUT_TOKENS: (5011, 501_100),
            Meter.OUTPUT_TOKENS: (32, 12_800),
        }
        assert whole.amount_nano_usd == owner.amount_nano_usd == 6_141_800
        assert figures(whole.lines)[Meter.INPUT_TOKENS] == (5042, 504_200)

    def test_an_implicit_hit_costs_what_an_explicit_one_does_and_is_counted_apart(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=5000, end=T0)
            generate(session, project, "r1", prompt=5300, cached=5000, cache_id="c", implicit=256, output=0)
            generate(session, project, "r2", prompt=5300, cached=5000, cache_id="c", output=0)
            generate(session, project, "r3", prompt=300, implicit=192, output=0)
            whole = bill(session)
        (owner,) = whole.projects
        levels: list[tuple[CacheBill | ProjectBill | Report, int, int, int]] = [
            (owner.caches[0], 10_256, 256, 344),
            (owner.caches[1], 192, 192, 108),
            (owner, 10_448, 448, 452),
            (whole, 10_448, 448, 452),
        ]
        for level, read, implicit, computed in levels:
            lines = {line.meter: line for line in level.lines}
            meter = Meter.CACHE_READ_TOKENS
            assert lines[meter] == Line(meter, read, 10 * read, implicit)
            assert lines[Meter.INPUT_TOKENS] == Line(Meter.INPUT_TOKENS, computed, 100 * computed)
            assert level.amount_nano_usd == 10 * read + 100 * computed

    def test_explicit_and_implicit_tokens_of_a_request_are_rounded_down_together(
        self, database: Database
    ) -> None:
        with database.write() as session:
            add_prices(session, book(dict.fromkeys(Meter, 0) | {Meter.CACHE_READ_TOKENS: 500_000}))
            project = add_project(session, "p")
            add_cache(session, project, "c", tokens=1, end=T0)
            generate(session, project, "r", prompt=3, cached=1, cache_id="c", implicit=1, output=0)
            assert bill(session).amount_nano_usd == 1

    def test_each_level_is_the_sum_of_the_one_below(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "q")
            for number, owner in enumerate((project, other, project)):
                add_cache(session, owner, f"c{number}", tokens=777 + number)
                generate(session, owner, f"r{number}", prompt=13 + number, implicit=4 * number, output=7)
            whole = bill(session)
        assert [each.project_id for each in whole.projects] == [project, other]
        assert [each.cache_id for each in whole.projects[0].caches] == ["c0", "c2", None]
        check_sums(whole, whole.projects)
        for each in whole.projects:
            check_sums(each, each.caches)

    def test_one_project_sees_only_its_own(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "q")
            for owner in (project, other):
                add_cache(session, owner, f"c_{owner}")
                generate(session, owner, f"r_{owner}", prompt=13, output=7)
            alone = bill(session, project_id=other)
        assert [each.project_id for each in alone.projects] == [other]
        assert [each.cache_id for each in alone.projects[0].caches] == [f"c_{other}", None]

    def test_reserved_and_void_rows_are_not_owed(self, database: Database, project: str) -> None:
        with database.write() as session:
            reserve(session, project, "running", prompt=10)
            reserve(session, project, "failed", prompt=10)
            assert usage.void(session, "failed", 1, after(1), "FAILED")
            assert bill(session).amount_nano_usd == 0

    def test_charges_a_row_to_the_period_and_price_in_which_it_ended(
        self, database: Database, project: str
    ) -> None:
        dearer = book({Meter.OUTPUT_TOKENS: 800_000_000}, since=after(10))
        with database.write() as session:
            store(session, PriceBook("test", (*book().prices, *dearer.prices)), T0)
            for name, ended in (("early", after(10) - TICK), ("late", after(10))):
                reserve(session, project, name, prompt=0)
                assert usage.finalise(session, name, 1, 1000, ended, "STOP")
            first, second = bill(session, T0, after(10)), bill(session, after(10), after(20))
        assert figures(first.lines) == {Meter.OUTPUT_TOKENS: (1000, 400_000)}
        assert figures(second.lines) == {Meter.OUTPUT_TOKENS: (1000, 800_000)}

    @pytest.mark.parametrize(
        "make", [lambda s, p: generate(s, p, "r", prompt=1, output=0), lambda s, p: add_cache(s, p, "c")]
    )
    def test_refuses_what_has_no_price(
        self, database: Database, make: Callable[[Session, str], None]
    ) -> None:
        with database.write() as session:
            make(session, add_project(session, "p"))
            with pytest.raises(PriceMissing):
                bill(session)

    def test_a_written_price_of_zero_is_free(self, database: Database) -> None:
        with database.write() as session:
            add_prices(session, book(dict.fromkeys(Meter, 0)))
            generate(session, add_project(session, "p"), "r", prompt=7, output=9)
            free = bill(session)
        assert figures(free.lines) == {Meter.INPUT_TOKENS: (7, 0), Meter.OUTPUT_TOKENS: (9, 0)}

    def test_refuses_a_reversed_and_a_naive_period(self, database: Database) -> None:
        with database.read() as session:
            for start, end in ((T0, T0 - TICK), (T0.replace(tzinfo=None), T0)):
                with pytest.raises(InvalidArgument):
                    bill(session, start, end)


class TestStorageInAReport:
    @pytest.fixture
    def session(self, database: Database, project: str) -> Iterator[Session]:
        """A unit that sees one cache of 1,000 tokens, alive from 0.9 to 100.1 seconds after T0."""
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000, start=after(0.9), end=after(100.1))
        with database.read() as session:
            yield session

    def seconds(
        self, session: Session, start: datetime = T0, end: datetime = T0 + MONTH, now: datetime = T0 + MONTH
    ) -> int:
        quantity, _ = figures(bill(session, start, end, now).lines).get(STORAGE, (0, 0))
        assert quantity % 1000 == 0
        return quantity // 1000

    def test_counts_whole_seconds_floor_to_floor(self, session: Session) -> None:
        assert self.seconds(session) == 100

    def test_cuts_at_the_period_in_whole_seconds(self, session: Session) -> None:
        assert self.seconds(session, T0, after(10.9)) == 10
        assert self.seconds(session, after(10.9), after(11)) == 1
        assert self.seconds(session, after(11), after(200)) == 89
        assert bill(session, after(100), after(200)).projects == ()

    def test_a_living_cache_is_charged_up_to_now(self, session: Session) -> None:
        assert self.seconds(session, T0, after(200), after(30.5)) == 30
        assert self.seconds(session, after(40), after(200), after(30.5)) == 0

    def test_the_end_of_the_period_comes_before_now(self, session: Session) -> None:
        assert self.seconds(session, T0, after(30), after(60)) == 30

    def test_a_life_of_no_second_costs_nothing(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", start=after(5.2), end=after(5.2))
            add_cache(session, project, "d", start=after(5.2), end=after(5.9))
            assert bill(session).projects == ()

    def test_deleting_stops_the_charge_at_that_second(self, database: Database, project: str) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000, start=T0, end=after(100))
            storage.close(session, "c", after(20.99))
            assert self.seconds(session) == 20

    def test_a_price_change_bills_each_side_at_its_own(self, database: Database, project: str) -> None:
        dearer = book({STORAGE: 7 * PRICES[STORAGE]}, since=after(40))
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000, start=T0, end=after(100))
            before = bill(session, T0, after(40))
            store(session, PriceBook("test", (*book().prices, *dearer.prices)), after(39))
            assert bill(session, T0, after(40)) == before
            expected = 1000 * 40 * 10**9 // (3600 * 10**6) + 1000 * 60 * 7 * 10**9 // (3600 * 10**6)
            assert bill(session).amount_nano_usd == expected
