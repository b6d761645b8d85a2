"""What one request or one cache costs, as it is told on every answer: what the ledger holds, or will hold, of it.

Corrections that an operator makes later are in no answer; they are on the bill.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.prices import load_prices
from billing.rating import seconds_between, storage_charge, token_charge, whole_second
from billing.timelines import Prices
from core.messages import Cost
from models.ledger_entry import find_entries
from models.storage_segment import StorageSegment, find_segments


def cost_of_request(session: Session, project_id: str, request_id: str) -> Cost:
    """What a request that is settled is charged; nothing where it is not owed."""
    keys = [f"{request_id}:{meter}" for meter in Meter]
    found = {entry.meter: entry for entry in find_entries(session, project_id, keys)}
    return Cost(
        tuple((meter.value, found[meter].amount_nano_usd) for meter in Meter if meter in found),
        sum(entry.without_cache_nano_usd for entry in found.values()),
    )


def costs_of_caches(session: Session, cache_ids: Sequence[str], now: datetime) -> Mapping[str, Cost]:
    """What writing each cache and keeping it up to now comes to; hits are charged to the requests.

    A cache that was never active has none.
    """
    segments = find_segments(session, cache_ids)
    if not segments:
        return {}
    prices = load_prices(session)
    return {segment.cache_id: _cost_of_cache(segment, prices, now) for segment in segments}


def _cost_of_cache(segment: StorageSegment, prices: Prices, now: datetime) -> Cost:
    write = prices.at(segment.project_id, segment.model, Meter.CACHE_WRITE_TOKENS, segment.started_at)
    written = token_charge(segment.token_count, write.nano_usd_per_million)
    until = max(now, segment.accrued_until)  # what is posted stays so when the clock is set back
    kept = _kept_until(segment, until, prices)
    return Cost(
        ((Meter.CACHE_WRITE_TOKENS.value, written), (Meter.CACHE_STORAGE_TOKEN_SECONDS.value, kept)), 0
    )


def _kept_until(segment: StorageSegment, until: datetime, prices: Prices) -> int:
    """What the hours of a life come to, uncut: the pieces of any cut sum to the whole, and a list shows many long lives."""
    first = whole_second(segment.started_at)
    last = whole_second(min(segment.ends_at, until))
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    return sum(
        storage_charge(segment.token_count, range(seconds_between(start, end)), price.nano_usd_per_million)
        for start, end, price in prices.between(segment.project_id, segment.model, meter, first, last)
    )
