import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from billing.meters import CREATE_METERS, GENERATE_METERS, Meter
from billing.price import ANY, Price, in_order
from billing.price_book import PriceBook, load_price_book, make_book
from billing.price_diff import Change
from billing.prices import (
    list_prices,
    load_book,
    load_prices,
    prices_at,
    require_prices,
    store,
    unpriced_meters,
)
from billing.usage import finalise
from core.errors import PriceBookInvalid, PriceMissing
from models.session import Database
from tests.billing.rows import (
    LONG_AGO,
    PRICES,
    T0,
    add_cache,
    add_project,
    after,
    book,
    bring_up_to_date,
    reserve,
)
from tests.fakes.clock import ManualClock

INPUT = Meter.INPUT_TOKENS
TICK = timedelta(microseconds=1)


def price(
    model: str,
    seconds: float,
    amount: int,
    meter: Meter = INPUT,
    project: str = ANY,
    until: float | None = None,
) -> Price:
    end = None if until is None else after(until)
    return Price(project, model, meter, after(seconds), end, amount)


def stored(database: Database) -> list[Price]:
    with database.read() as session:
        return list_prices(session)


def made(*prices: Price) -> PriceBook:
    return make_book("test", list(prices))


def store_at(database: Database, seconds: float, *prices: Price) -> None:
    with database.write() as session:
        store(session, made(*prices), after(seconds))


class TestRequirePrices:
    def test_accepts_a_model_with_a_price_for_each_meter_zero_included(self, database: Database) -> None:
        with database.write() as session:
            store(session, book({**PRICES, INPUT: 0}), T0)
            for meters in (CREATE_METERS, GENERATE_METERS):
                require_prices(session, "p", "tiny", meters, T0)

    def test_refuses_the_class_of_requests_that_a_meter_without_a_price_counts(
        self, database: Database
    ) -> None:
        kept: dict[Meter, int] = {
            meter: amount for meter, amount in PRICES.items() if meter != Meter.CACHE_WRITE_TOKENS
        }
        with database.write() as session:
            store(session, book(kept), T0)
            require_prices(session, "p", "tiny", GENERATE_METERS, T0)
            with pytest.raises(PriceMissing, match="no price for cache_write_tokens at"):
                require_prices(session, "p", "tiny", CREATE_METERS, T0)

    def test_a_price_of_its_own_is_enough_for_a_project(self, database: Database) -> None:
        with database.write() as session:
            project_id = add_project(session, "p")
            store(session, book(project_id="p"), T0)
            require_prices(session, project_id, "tiny", GENERATE_METERS, T0)
            with pytest.raises(PriceMissing):
                require_prices(session, "other", "tiny", GENERATE_METERS, T0)

    def test_names_each_meter_without_a_price_in_force(self, database: Database) -> None:
        early = {meter: amount for meter, amount in PRICES.items() if meter != INPUT}
        with database.write() as session:
            store(session, made(*book(early).prices, price("tiny", 10, 10**9)), T0)
            assert unpriced_meters(session, "tiny", after(10)) == []
            assert unpriced_meters(session, "tiny", after(10) - TICK) == [INPUT]
            assert unpriced_meters(session, "other", T0) == [*Meter]

    def test_the_example_covers_any_model(self, database: Database) -> None:
        with database.write() as session:
            store(session, load_price_book(None), T0)
            assert unpriced_meters(session, "whatever", T0) == []


class TestStore:
    def test_an_empty_table_takes_any_book(self, database: Database) -> None:
        prices = made(price("*", -100, 1), price("*", 0, 2), price("m", 100, 3))
        with database.write() as session:
            store(session, prices, after(50))
        assert stored(database) == list(prices.prices)

    def test_the_same_book_again_changes_nothing(self, database: Database) -> None:
        for now in (0, 10, 10**6):
            store_at(database, now, price("m", 0, 1), price("m", 10, 2))
        assert stored(database) == [price("m", 0, 1, until=10), price("m", 10, 2)]

    def test_what_stays_keeps_its_id(self, database: Database) -> None:
        store_at(database, 0, price("m", 0, 1), price("m", 10, 2))
        ids = [row.id for row in stored(database)]
        store_at(database, 5, price("m", 0, 1), price("m", 10, 2), price("m", 20, 3))
        assert [row.id for row in stored(database)][:2][0] == ids[0]

    def test_a_price_to_come_can_be_added_changed_moved_and_dropped(self, database: Database) -> None:
        now = price("m", 0, 1)
        for coming in ([price("m", 20, 2)], [price("m", 20, 3)], [price("m", 11, 3)], []):
            store_at(database, 10, now, *coming)
            assert stored(database) == list(made(now, *coming).prices)

    def test_an_end_to_come_can_be_moved_and_taken_away(self, database: Database) -> None:
        shared = price("*", 0, 1)
        for until in (20, 15, 11, 30, None):
            store_at(database, 10, shared, price("m", 0, 2, until=until))
            assert stored(database) == [shared, price("m", 0, 2, until=until)]

    def test_an_end_that_has_passed_stays_and_none_is_set_in_the_past(self, database: Database) -> None:
        shared = price("*", 0, 1)
        store_at(database, 0, shared, price("m", 0, 2, until=20))
        for until in (10, 5):
            with pytest.raises(PriceBookInvalid, match="end at another instant"):
                store_at(database, 10, shared, price("m", 0, 2, until=until))
        for later in (21, None):
            with pytest.raises(PriceBookInvalid, match="end at another instant"):
                store_at(database, 20, shared, price("m", 0, 2, until=later))
        assert stored(database) == [shared, price("m", 0, 2, until=20)]

    @pytest.mark.parametrize("seconds", [0, 10])
    def test_a_price_in_force_can_be_neither_changed_nor_dropped(
        self, database: Database, seconds: float
    ) -> None:
        held = price("m", 0, 1)
        store_at(database, 0, held)
        other = price("*", 1000, 1)
        for wrong in (
            [replace(held, nano_usd_per_million=2)],
            [replace(held, effective_from=after(1))],
            [other],
        ):
            with pytest.raises(PriceBookInvalid, match="is in force"):
                store_at(database, seconds, *wrong)
        assert stored(database) == [held]

    def test_a_price_can_be_added_behind_the_present_where_none_held(self, database: Database) -> None:
        held = price("m", 0, 1)
        store_at(database, 0, held)
        added = price("new", 5, 2), price("m", 5, 3, Meter.OUTPUT_TOKENS), price("*", 5, 4)
        store_at(database, 10, held, *added)
        with database.read() as session:
            assert load_prices(session).at("p", "m", INPUT, after(5)).nano_usd_per_million == 1

    def test_a_refused_book_leaves_nothing_behind(self, database: Database) -> None:
        held = price("m", 0, 1)
        store_at(database, 0, held)
        with pytest.raises(PriceBookInvalid):
            store_at(database, 10, held, price("fresh", 5, 1), price("m", 5, 1))
        assert stored(database) == [held]

    def test_finds_a_project_by_name_or_id_and_refuses_one_that_is_not_there(
        self, database: Database
    ) -> None:
        with database.write() as session:
            project_id = add_project(session, "p")
        own = price("m", 0, 1, project="p")
        for word in ("p", project_id):
            store_at(database, 0, replace(own, project_id=word))
            assert stored(database) == [replace(own, project_id=project_id)]
        with pytest.raises(PriceBookInvalid, match="no project 'nobody'"):
            store_at(database, 0, own, price("m", 0, 1, project="nobody"))

    def test_refuses_one_project_under_two_names_and_names_a_row_of_each(self, database: Database) -> None:
        with database.write() as session:
            project_id = add_project(session, "p")
        for other in (price("m", 0, 1), price("m", 5, 1), price("x", 0, 1, Meter.OUTPUT_TOKENS)):
            with pytest.raises(
                PriceBookInvalid, match=rf"project p from .* project {project_id} from .*one way"
            ):
                store_at(database, 0, price("m", 0, 1, project="p"), replace(other, project_id=project_id))
        assert stored(database) == []

    @pytest.mark.parametrize("fact", ["accepted", "ended", "kept"])
    def test_what_is_in_the_books_is_past_although_the_clock_was_set_back(
        self, database: Database, fact: str
    ) -> None:
        def output(model: str, seconds: float, amount: int, project: str = ANY) -> Price:
            return price(model, seconds, amount, Meter.OUTPUT_TOKENS, project)

        rest, begun = book().prices, output("tiny", 50, 1)
        held = made(*rest, begun)
        with database.write() as session:
            store(session, held, T0)
            project = add_project(session, "p")
            if fact == "kept":
                add_cache(session, project, "c", end=after(100))
            else:
                reserve(session, project, "r", prompt=1, at=after(100))
            if fact == "ended":
                assert finalise(session, "r", 1, 1, after(100), "STOP")
        bring_up_to_date(database, after(100))
        for wrong in (
            [*rest],
            [*rest, replace(begun, nano_usd_per_million=2)],
            [*rest, replace(begun, effective_to=after(90)), output("tiny", 90, 3)],
            [*rest, begun, output("tiny", 60, 1)],
            [*rest, begun, output("*", 60, 1, "p")],
        ):
            with pytest.raises(PriceBookInvalid, match=r"is in force|in the past|behind the present"):
                store_at(database, 10, *wrong)
        assert stored(database) == list(held.prices)
        store_at(database, 10, *rest, begun, output("*", 101, 1, "p"))
        assert len(stored(database)) == len(held.prices) + 1


class TestLoadBook:
    def load(self, database: Database, seconds: float, *prices: Price) -> list[Change]:
        with database.write() as session:
            return load_book(session, made(*prices), ManualClock(after(seconds)))

    def test_gives_what_it_changes(self, database: Database) -> None:
        held, next_one = price("m", 0, 1), price("m", 200, 2)
        assert self.load(database, 0, held) == [Change("added", held)]
        assert [each.kind for each in self.load(database, 9, held, next_one)] == ["end moved", "added"]
        assert self.load(database, 10, held, next_one) == []

    def test_nothing_changes_within_a_minute_for_requests_go_on_meanwhile(self, database: Database) -> None:
        held, coming = price("m", 0, 1), price("m", 100, 2)
        shared = price("*", 0, 3)
        self.load(database, 0, held, coming, shared)
        for wrong in (
            [held, shared],
            [held, replace(coming, effective_from=after(90)), shared],
            [held, replace(coming, effective_from=after(999)), shared],
            [held, replace(coming, nano_usd_per_million=3), shared],
            [held, coming, shared, price("*", 100, 1, project="*", meter=INPUT)],
        ):
            with pytest.raises(PriceBookInvalid, match=r"minute|in the past"):
                self.load(database, 40, *wrong)
        assert self.load(database, 39.9, held, shared) != []

    def test_two_books_at_once_come_one_after_the_other(self, database: Database) -> None:
        held, mine, theirs = price("*", 0, 1), price("m", 999, 2), price("n", 999, 3)
        self.load(database, 0, held)
        other = threading.Thread(target=self.load, args=(database, 0, held, theirs))
        with database.write() as session:
            load_book(session, made(held, mine), ManualClock(T0))
            other.start()
            other.join(0.2)  # where it did not wait, it would be through
        other.join()
        assert stored(database) == [held, theirs]


class TestPricesAt:
    def test_holds_what_can_apply_and_nothing_else(self, database: Database) -> None:
        with database.write() as session:
            project_id = add_project(session, "p")
            own = price("tiny", 0, 70_000_000, project="p")
            store(session, made(*book().prices, *book(model="other").prices, own), T0)
            found = prices_at(session, project_id, "tiny", T0)
            assert found.at(project_id, "tiny", INPUT, T0).nano_usd_per_million == 70_000_000
            before = prices_at(session, project_id, "tiny", T0 - TICK)
            assert before.at(project_id, "tiny", INPUT, T0 - TICK).effective_from == LONG_AGO
            with pytest.raises(PriceMissing):
                found.at(project_id, "other", INPUT, T0)
            assert in_order([*list_prices(session)]) == list_prices(session)
