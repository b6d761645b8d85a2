from datetime import timedelta

import pytest

from billing.meters import Meter
from billing.price import ANY, Price
from billing.price_book import make_book
from billing.timelines import Prices
from core.errors import PriceMissing
from tests.billing.rows import T0, after

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


def prices(*rows: Price) -> Prices:
    """Each ends where the next of its subject begins."""
    return Prices(make_book("test", list(rows)).prices)


class TestAt:
    def test_a_price_holds_from_its_instant_until_the_next(self) -> None:
        known = prices(price("m", 0, 1), price("m", 10, 2))
        assert known.at("p", "m", INPUT, T0).nano_usd_per_million == 1
        assert known.at("p", "m", INPUT, after(10) - TICK).nano_usd_per_million == 1
        assert known.at("p", "m", INPUT, after(10)).nano_usd_per_million == 2
        assert known.at("p", "m", INPUT, after(10**6)).nano_usd_per_million == 2

    def test_the_nearest_price_goes_first_while_it_holds(self) -> None:
        known = prices(
            price("*", 0, 1),
            price("m", 10, 2, until=20),
            price("*", 12, 3, project="p", until=18),
            price("m", 14, 4, project="p", until=16),
        )

        def seen(project: str, model: str) -> list[int]:
            return [known.at(project, model, INPUT, after(at)).nano_usd_per_million for at in range(9, 22)]

        assert seen("q", "other") == [1] * 13
        assert seen("q", "m") == [1] + [2] * 10 + [1, 1]
        assert seen("p", "other") == [1, 1, 1, *[3] * 6, 1, 1, 1, 1]
        assert seen("p", "m") == [1, 2, 2, 3, 3, 4, 4, 3, 3, 2, 2, 1, 1]

    def test_refuses_what_has_no_price(self) -> None:
        known = prices(price("m", 0, 1))
        for model, meter, instant in (
            ("m", INPUT, T0 - TICK),
            ("other", INPUT, T0),
            ("m", Meter.OUTPUT_TOKENS, T0),
        ):
            with pytest.raises(PriceMissing, match=f'"{model}" has no price for {meter}'):
                known.at("p", model, meter, instant)
        ended = Prices([price("m", 0, 1, until=5)])
        assert ended.at("p", "m", INPUT, after(5) - TICK).nano_usd_per_million == 1
        with pytest.raises(PriceMissing):
            ended.at("p", "m", INPUT, after(5))


class TestBetween:
    def cut(self, known: Prices, start: float, end: float) -> list[tuple[float, float, int]]:
        return [
            ((a - T0).total_seconds(), (b - T0).total_seconds(), each.nano_usd_per_million)
            for a, b, each in known.between("p", "m", INPUT, after(start), after(end))
        ]

    def test_tiles_the_interval_where_the_price_changes(self) -> None:
        known = prices(price("*", 0, 1), price("m", 10, 2), price("*", 20, 3), price("m", 30, 4))
        assert self.cut(known, 5, 30) == [(5, 10, 1), (10, 30, 2)]
        assert self.cut(known, 5, 30.5) == [(5, 10, 1), (10, 30, 2), (30, 30.5, 4)]

    def test_a_price_that_was_interrupted_comes_twice(self) -> None:
        known = prices(price("*", 0, 1), price("m", 10, 2, until=20))
        assert self.cut(known, 0, 30) == [(0, 10, 1), (10, 20, 2), (20, 30, 1)]

    def test_an_empty_interval_has_no_piece(self) -> None:
        assert list(Prices([]).between("p", "m", INPUT, T0, T0)) == []

    @pytest.mark.parametrize(("start", "end"), [(9, 20), (9, 10), (15, 21), (20, 21)])
    def test_refuses_an_interval_that_is_not_covered(self, start: float, end: float) -> None:
        known = Prices([price("m", 10, 1, until=20)])
        assert self.cut(known, 10, 20) == [(10, 20, 1)]
        with pytest.raises(PriceMissing):
            self.cut(known, start, end)

    def test_refuses_a_hole_in_the_midst(self) -> None:
        known = Prices([price("m", 0, 1, until=10), price("m", 20, 2)])
        with pytest.raises(PriceMissing):
            self.cut(known, 5, 25)
