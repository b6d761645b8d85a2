"""When a cache pays: how often it has to be hit for that. Exact fractions, rounded only where they are shown."""

from datetime import datetime
from fractions import Fraction

from billing.meters import Meter
from billing.timelines import Prices

_DIGITS = 4


def hits_per_hour_to_keep(prices: Prices, project_id: str, model: str, at: datetime) -> Fraction | None:
    """How many hits an hour save what an hour of storage costs, at the prices of an instant; None where no number does.

    What a hit saves and what an hour costs both grow with the cache, so its size is not in it; neither is writing it,
    which is paid once. Raises PriceMissing.
    """

    def price(meter: Meter) -> int:
        return prices.at(project_id, model, meter, at).nano_usd_per_million

    saved = price(Meter.INPUT_TOKENS) - price(Meter.CACHE_READ_TOKENS)
    return Fraction(price(Meter.CACHE_STORAGE_TOKEN_SECONDS), saved) if saved > 0 else None


def rounded(rate: Fraction | None) -> float | None:
    """A rate as it is shown; no amount is ever made of it."""
    return None if rate is None else round(float(rate), _DIGITS)
