from itertools import product

import pytest

from billing.meters import Meter
from billing.price import ANY, Price
from billing.price_history import check_history
from billing.timelines import Prices
from core.errors import PriceBookInvalid, PriceMissing
from tests.billing.rows import after

INPUT = Meter.INPUT_TOKENS
SUBJECTS = tuple(product(("P", ANY), ("m", ANY)))
PAYERS = tuple(product(("P", "other"), ("m", "another")))


def price(project: str, model: str, seconds: float, until: float | None = None, amount: int = 1) -> Price:
    return Price(project, model, INPUT, after(seconds), None if until is None else after(until), amount)


def is_refused(stored: list[Price], wanted: list[Price], until: float) -> bool:
    try:
        check_history("test", stored, wanted, after(until))
    except PriceBookInvalid:
        return True
    return False


def paid(prices: list[Price], seconds: float) -> list[int | None]:
    """What each payer pays at an instant."""
    resolved = Prices(prices)

    def of(project: str, model: str) -> int | None:
        try:
            return resolved.at(project, model, INPUT, after(seconds)).nano_usd_per_million
        except PriceMissing:
            return None

    return [of(*payer) for payer in PAYERS]


@pytest.mark.parametrize(("own", "held"), [*product(SUBJECTS, SUBJECTS)])
def test_no_price_goes_before_another_behind_the_present(own: tuple[str, str], held: tuple[str, str]) -> None:
    """Whoever the new price is for, and whoever the old one: refused if, and only if, somebody would have paid it."""
    before = [price(*held, 0, 100)]
    for start, end in ((-5, None), (5, None), (10, None), (11, None), (3, 7), (-5, -1), (-5, 0)):
        added = price(*own, start, end, amount=2)
        if own == held and added.overlaps(after(0), after(100)):
            continue  # a book has no two prices of one subject at once
        changed = [
            (was, now)
            for instant in (-5, -1, 0, 3, 5, 7, 10)
            for was, now in zip(paid(before, instant), paid([*before, added], instant), strict=True)
            if was is not None
        ]
        is_behind = any(was != now for was, now in changed)
        assert is_refused(before, [*before, added], 10) is is_behind, (start, end)


def test_a_price_of_another_meter_or_project_or_model_goes_before_none() -> None:
    before = [price("P", "m", 0)]
    for other in (
        price("Q", "m", 5),
        price("P", "n", 5),
        Price("P", "m", Meter.OUTPUT_TOKENS, after(5), None, 2),
    ):
        assert not is_refused(before, [*before, other], 10)


def test_what_begins_at_the_last_instant_is_past() -> None:
    begun = price("P", "m", 10)
    assert is_refused([begun], [], 10)
    assert not is_refused([begun], [], 9.999)
