"""What one request or one cache costs, as it is told on every answer: what the ledger holds, or will hold, of it.

Corrections that an operator makes later are in no answer; they are on the bill.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from billing.charges import storage_so_far, usage_charges
from billing.meters import Meter
from billing.prices import load_prices
from billing.timelines import Prices
from core.messages import Cost
from models.ledger_entry import find_entries
from models.storage_segment import StorageSegment, find_segments
from models.usage import Usage, UsageKind


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
    until = max(now, segment.accrued_until)  # what is posted stays so when the clock is set back
    written = sum(charge.amount_nano_usd for charge in usage_charges(_written(segment), prices))
    kept = storage_so_far(segment, until, prices)
    return Cost(
        ((Meter.CACHE_WRITE_TOKENS.value, written), (Meter.CACHE_STORAGE_TOKEN_SECONDS.value, kept)), 0
    )


def _written(segment: StorageSegment) -> Usage:
    """The row of the create, which was made in one unit with the segment."""
    return Usage(
        id="",
        kind=UsageKind.CREATE,
        project_id=segment.project_id,
        key_id=segment.key_id,
        cache_id=segment.cache_id,
        model=segment.model,
        input_tokens=0,
        cache_read_tokens=0,
        implicit_cache_tokens=0,
        cache_write_tokens=segment.token_count,
        output_tokens=0,
        created_at=segment.started_at,
        occurred_at=segment.started_at,
    )
