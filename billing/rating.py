"""Quantity × price → nano-USD, in integers.

Storage is priced by differences of cumulative floors: what a segment has cost by an instant is rounded down once, and a
period is charged the difference of two such values. So however a life is cut into periods, the pieces sum to the whole.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from billing.meters import CREATE_METERS, READ_METERS, Meter

HOUR = timedelta(hours=1)
TOKENS_PER_PRICE_UNIT = 1_000_000
TOKEN_SECONDS_PER_PRICE_UNIT = 3_600 * 1_000_000


def token_charge(tokens: int, nano_usd_per_million: int) -> int:
    """What one usage row owes for one meter."""
    return tokens * nano_usd_per_million // TOKENS_PER_PRICE_UNIT


class Rates(NamedTuple):
    """Nano-USD for a million units of a meter, and for the same had nothing been cached."""

    own: int
    without_cache: int

    @classmethod
    def of(cls, meter: Meter, own: int, computed: int) -> "Rates":
        """computed: the price of input, which what was read would have cost; of other meters it does not matter."""
        if meter in CREATE_METERS:
            return cls(own, 0)
        return cls(own, computed if meter in READ_METERS else own)


def storage_charge(tokens: int, elapsed: range, nano_usd_per_million: int) -> int:
    """What a segment owes for the seconds of `elapsed`, counted from its start under one price."""
    owed_before = storage_floor(tokens * elapsed.start, nano_usd_per_million)
    owed_after = storage_floor(tokens * elapsed.stop, nano_usd_per_million)
    return owed_after - owed_before


def storage_floor(token_seconds: int, nano_usd_per_million: int) -> int:
    """What so many token-seconds under one price have cost altogether."""
    return token_seconds * nano_usd_per_million // TOKEN_SECONDS_PER_PRICE_UNIT


def storage_ceiling(token_seconds: int, nano_usd_per_million: int) -> int:
    """The least that no difference of two such floors exceeds, wherever its seconds begin to count."""
    return -(-token_seconds * nano_usd_per_million // TOKEN_SECONDS_PER_PRICE_UNIT)


def whole_second(instant: datetime) -> datetime:
    """Round down: storage is billed by whole seconds, floor(end) - floor(start)."""
    return instant.replace(microsecond=0)


def whole_hour(instant: datetime) -> datetime:
    """Round down: a charge belongs to the hour of UTC in which it occurred."""
    return instant.replace(minute=0, second=0, microsecond=0)


def seconds_between(start: datetime, end: datetime) -> int:
    return (end - start) // timedelta(seconds=1)
