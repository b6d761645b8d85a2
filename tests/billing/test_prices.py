from dataclasses import replace
from datetime import timedelta

import pytest

from billing.meters import Meter
from billing.price_book import Price, PriceBook, load_price_book
from billing.prices import Prices, list_prices, require_prices, store
from core.errors import PriceBookInvalid, PriceMissing
from models.session import Database
from tests.billing.rows import PRICES, T0, after, book

INPUT = Meter.INPUT_TOKENS
TICK = timedelta(microseconds=1)


def price(model: str, seconds: float, amount: int, meter: Meter = INPUT) -> Price:
    return Price(model, meter, after(seconds), amount)


def stored(database: Database) -> list[Price]:
    with database.read() as session:
        return list_prices(session)


def store_at(database: Database, seconds: float, *prices: Price) -> None:
    with database.write() as session:
        store(session, PriceBook("test", prices), after(seconds))


class TestAt:
    def test_a_price_holds_from_its_instant_until_the_next(self) -> None:
        prices = Prices([price("m", 0, 1), price("m", 10, 2)])
        assert prices.at("m", INPUT, T0).nano_usd_per_million == 1
        assert prices.at("m", INPUT, after(10) - TICK).nano_usd_per_million == 1
        assert prices.at("m", INPUT, after(10)).nano_usd_per_million == 2
        assert prices.at("m", INPUT, after(10**6)).nano_usd_per_million == 2

    def test_a_models_own_price_comes_before_that_of_any_model(self) -> None:
        prices = Prices([price("*", 0, 1), price("m", 10, 2), price("*", 20, 3)])
        assert prices.at("m", INPUT, after(9)).nano_usd_per_million == 1
        assert prices.at("m", INPUT, after(25)).nano_usd_per_million == 2
        assert prices.at("other", INPUT, after(25)).nano_usd_per_million == 3

    def test_refuses_what_has_no_price(self) -> None:
        prices = Prices([price("m", 0, 1)])
        for model, meter, instant in (
            ("m", INPUT, T0 - TICK),
            ("other", INPUT, T0),
            ("m", Meter.OUTPUT_TOKENS, T0),
        ):
            with pytest.raises(PriceMissing, match=f'"{model}" has no price for {meter}'):
                prices.at(model, meter, instant)


class TestBetween:
    def test_tiles_the_interval_where_the_price_changes(self) -> None:
        prices = Prices([price("*", 0, 1), price("m", 10, 2), price("*", 20, 3), price("m", 30, 4)])
        pieces = [
            (a - T0, b - T0, p.nano_usd_per_million)
            for a, b, p in prices.between("m", INPUT, after(5), after(30))
        ]
        assert pieces == [
            (timedelta(seconds=5), timedelta(seconds=10), 1),
            (timedelta(seconds=10), timedelta(seconds=30), 2),
        ]

    def test_an_empty_interval_has_no_piece(self) -> None:
        assert list(Prices([]).between("m", INPUT, T0, T0)) == []

    def test_refuses_an_interval_that_begins_before_the_first_price(self) -> None:
        with pytest.raises(PriceMissing):
            list(Prices([price("m", 10, 1)]).between("m", INPUT, after(9), after(20)))


class TestRequirePrices:
    def test_accepts_a_model_with_a_price_for_each_meter_zero_included(self, database: Database) -> None:
        with database.write() as session:
            store(session, book({**PRICES, INPUT: 0}), T0)
            require_prices(session, "tiny", T0)

    def test_names_each_meter_without_a_price_in_force(self, database: Database) -> None:
        early = {meter: amount for meter, amount in PRICES.items() if meter != INPUT}
        late = price("tiny", 10, 5)
        with database.write() as session:
            store(session, PriceBook("test", (*book(early).prices, late)), T0)
            require_prices(session, "tiny", after(10))
            with pytest.raises(PriceMissing, match="no price for input_tokens at"):
                require_prices(session, "tiny", after(10) - TICK)
            with pytest.raises(PriceMissing, match=", ".join(Meter)):
                require_prices(session, "other", T0)

    def test_the_example_covers_any_model(self, database: Database) -> None:
        with database.write() as session:
            store(session, load_price_book(None), T0)
            require_prices(session, "whatever", T0)


class TestStore:
    def test_an_empty_table_takes_any_book(self, database: Database) -> None:
        prices = [price("*", -100, 1), price("*", 0, 2), price("m", 100, 3)]
        store_at(database, 50, *prices)
        assert stored(database) == sorted(prices)

    def test_the_same_book_again_changes_nothing(self, database: Database) -> None:
        for now in (0, 10, 10**6):
            store_at(database, now, price("m", 0, 1), price("m", 10, 2))
        assert stored(database) == [price("m", 0, 1), price("m", 10, 2)]

    def test_a_price_to_come_can_be_added_changed_moved_and_dropped(self, database: Database) -> None:
        now = price("m", 0, 1)
        for coming in ([price("m", 20, 2)], [price("m", 20, 3)], [price("m", 11, 3)], []):
            store_at(database, 10, now, *coming)
            assert stored(database) == [now, *coming]

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

    @pytest.mark.parametrize("model", ["m", "*"])
    def test_no_price_can_be_added_behind_the_present_where_one_held(
        self, database: Database, model: str
    ) -> None:
        held = price(model, 0, 1)
        store_at(database, 0, held)
        for seconds in (-5, 5, 10):
            with pytest.raises(PriceBookInvalid, match="behind the present"):
                store_at(database, 10, held, price("m", seconds, 2))
        store_at(database, 10, held, price("m", 11, 2))
        assert len(stored(database)) == 2

    def test_a_price_can_be_added_behind_the_present_where_none_held(self, database: Database) -> None:
        held = price("m", 0, 1)
        store_at(database, 0, held)
        store_at(
            database, 10, held, price("new", 5, 2), price("m", 5, 3, Meter.OUTPUT_TOKENS), price("*", 5, 4)
        )
        with database.read() as session:
            prices = Prices(list_prices(session))
        assert prices.at("m", INPUT, after(5)).nano_usd_per_million == 1

    def test_a_refused_book_leaves_nothing_behind(self, database: Database) -> None:
        held = price("m", 0, 1)
        store_at(database, 0, held)
        with pytest.raises(PriceBookInvalid):
            store_at(database, 10, held, price("fresh", 5, 1), price("m", 5, 1))
        assert stored(database) == [held]
