"""What a correction comes to: what a charge should have been, less what stands of it. Arithmetic alone."""

from collections.abc import Iterable
from typing import NamedTuple

from billing.meters import CREATE_METERS, READ_METERS, Meter
from billing.rating import Rates, storage_floor, token_charge


class Figures(NamedTuple):
    """Of a charge, of a correction, or of both together."""

    quantity: int
    amount_nano_usd: int
    without_cache_nano_usd: int

    def less(self, other: "Figures") -> "Figures":
        return Figures(*(mine - its for mine, its in zip(self, other, strict=True)))


def add_up(figures: Iterable[Figures]) -> Figures:
    """What a charge and its corrections come to together."""
    return Figures(*map(sum, zip(*figures, strict=True)))


def at_quantity(meter: Meter, charge: Figures, quantity: int, rates: Rates) -> Figures:
    """What a charge should have been for a quantity: at its rates, rounded down once, whatever was corrected before.

    The quantity that it was charged for costs what it was charged: an hour of storage is the difference of two floors, so
    that it may be a nano more than its own floor.
    """
    if quantity == charge.quantity:
        return charge
    cost = storage_floor if meter is Meter.CACHE_STORAGE_TOKEN_SECONDS else token_charge
    return Figures(quantity, cost(quantity, rates.own), cost(quantity, rates.without_cache))


def at_amount(meter: Meter, stands: Figures, amount_nano_usd: int) -> Figures:
    """What a charge should have been where its price was wrong; stands: what it and its corrections come to so far.

    What was read would have cost the same without a cache, for that has the price of input.
    """
    if meter in READ_METERS:
        without_cache = stands.without_cache_nano_usd
    else:
        without_cache = 0 if meter in CREATE_METERS else amount_nano_usd
    return Figures(stands.quantity, amount_nano_usd, without_cache)
