"""What a charge should have been, against exact fractions."""

from fractions import Fraction
from math import floor

import pytest

from billing.differences import Figures, add_up, at_amount, at_quantity
from billing.meters import READ_METERS, Meter
from billing.rating import Rates

STORAGE, WRITE = Meter.CACHE_STORAGE_TOKEN_SECONDS, Meter.CACHE_WRITE_TOKENS


@pytest.mark.parametrize("meter", Meter)
def test_a_quantity_costs_what_its_price_says_whatever_the_first_one_was_rounded_to(meter: Meter) -> None:
    unit = 10**6 * (3_600 if meter is STORAGE else 1)
    for own, computed in ((1_900_000, 3_700_001), (300_000, 300_001), (0, 7), (10**13, 10**13)):
        rates = Rates.of(meter, own, computed)
        without = computed if meter in READ_METERS else 0 if meter in (STORAGE, WRITE) else own
        for first in (1, 3, 999):
            charge = Figures(first, first * own // unit, first * without // unit)
            for wanted in (0, 1, 2, 1_000, 3_000_000):
                exact = [floor(Fraction(wanted, unit) * price) for price in (own, without)]
                assert at_quantity(meter, charge, wanted, rates) == (wanted, *exact)


def test_the_first_quantity_costs_again_what_it_was_charged() -> None:
    """The second of two hours at 0.5 nano-USD each pays 1, for the first has paid 0."""
    charge = Figures(3_600, 1, 0)
    assert at_quantity(STORAGE, charge, 3_600, Rates(500_000, 0)) == charge
    assert at_quantity(STORAGE, charge, 3_601, Rates(500_000, 0)).amount_nano_usd == 0


@pytest.mark.parametrize("meter", Meter)
def test_an_amount_leaves_the_quantity_and_what_reads_would_have_cost(meter: Meter) -> None:
    stands = add_up([Figures(10, 100, 700), Figures(-3, -30, -210)])
    assert stands == (7, 70, 490)
    without = 490 if meter in READ_METERS else 0 if meter in (STORAGE, WRITE) else 5
    assert at_amount(meter, stands, 5) == (7, 5, without)
