"""Quantity × price → nano-USD, in integers.

Storage is priced by differences of cumulative floors: what a segment has cost by an instant is rounded down once, and a
period is charged the difference of two such values. So however a life is cut into periods, the pieces sum to the whole.
"""

from datetime import datetime

TOKENS_PER_PRICE_UNIT = 1_000_000
TOKEN_SECONDS_PER_PRICE_UNIT = 3_600 * 1_000_000


def token_charge(tokens: int, nano_usd_per_million: int) -> int:
    """What one usage row owes for one meter."""
    return tokens * nano_usd_per_million // TOKENS_PER_PRICE_UNIT


def whole_seconds(instant: datetime) -> int:
    """Seconds since 1970, rounded down; exact, where datetime.timestamp() goes through a float."""
    return int(instant.replace(microsecond=0).timestamp())


def storage_charge(tokens: int, elapsed: range, nano_usd_per_million: int) -> int:
    """What a segment owes for the seconds of `elapsed`, counted from its start under one price."""
    return _storage_floor(tokens * elapsed.stop, nano_usd_per_million) - _storage_floor(
        tokens * elapsed.start, nano_usd_per_million
    )


def _storage_floor(token_seconds: int, nano_usd_per_million: int) -> int:
    return token_seconds * nano_usd_per_million // TOKEN_SECONDS_PER_PRICE_UNIT
