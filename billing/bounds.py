"""What something can come to at most while it runs, and what a cache's storage will come to: so much is held for it.

Nano-USD, at prices that are known now. What is settled later is never more, unless a price rises meanwhile: that of storage, where
the rise was not known, or that of writing, between the asking for a cache and its activation.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from billing.meters import Meter
from billing.months import by_month
from billing.rating import (
    seconds_between,
    storage_ceiling,
    storage_charge,
    token_charge,
    whole_second,
)
from billing.timelines import Prices
from models.cache import Cache
from models.storage_segment import StorageSegment
from models.usage import Usage

_STORAGE = Meter.CACHE_STORAGE_TOKEN_SECONDS


def most_of_request(row: Usage, prices: Prices) -> int:
    """A request that reads its whole cache, computes all else and puts out as much as it may, at the prices of its beginning."""

    def price(meter: Meter) -> int:
        return prices.at(row.project_id, row.model, meter, row.created_at).nano_usd_per_million

    # A price book whose reads cost more than input is refused now; an older one may be in force.
    computed = max(price(Meter.INPUT_TOKENS), price(Meter.IMPLICIT_CACHE_READ_TOKENS))
    return (
        token_charge(row.cache_read_tokens, price(Meter.CACHE_READ_TOKENS))
        + token_charge(row.input_tokens, computed)
        + token_charge(row.most_output_tokens, price(Meter.OUTPUT_TOKENS))
    )


def most_of_write(cache: Cache, prices: Prices) -> int:
    """A cache that is being built, written at the price of when it was asked for."""
    price = prices.at(cache.project_id, cache.model, Meter.CACHE_WRITE_TOKENS, cache.created_at)
    return token_charge(cache.token_count, price.nano_usd_per_million)


def most_of_storage(cache: Cache, prices: Prices) -> Mapping[str, int]:
    """The life of a cache that is being built, by month.

    Each piece is rounded up: where its seconds begin to count is not known before the cache is active, and a difference of
    two floors is never more.
    """
    amounts: Counter[str] = Counter()
    first, last = whole_second(cache.created_at), whole_second(cache.expire_at)
    for start, end, price in prices.between(cache.project_id, cache.model, _STORAGE, first, last):
        for month, begin, until in by_month(start, end):
            token_seconds = cache.token_count * seconds_between(begin, until)
            amounts[month] += storage_ceiling(token_seconds, price.nano_usd_per_million)
    return amounts


def storage_to_come(segment: StorageSegment, prices: Prices) -> Mapping[str, int]:
    """What is planned of a segment and not posted yet, by month, exactly as it will be posted."""
    amounts: Counter[str] = Counter()
    first, last = whole_second(segment.started_at), whole_second(segment.ends_at)
    posted = whole_second(segment.accrued_until)
    for start, end, price in prices.between(segment.project_id, segment.model, _STORAGE, first, last):
        for month, begin, until in by_month(max(start, posted), end):
            amounts[month] += storage_charge(
                segment.token_count, _elapsed(start, begin, until), price.nano_usd_per_million
            )
    return amounts


def _elapsed(origin: datetime, begin: datetime, until: datetime) -> range:
    return range(seconds_between(origin, begin), seconds_between(origin, until))
