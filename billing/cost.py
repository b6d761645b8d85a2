"""What one request or one cache costs, as it is told on every answer: what the ledger holds, or will hold, of it."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from billing.charges import storage_charges
from billing.meters import Meter
from billing.prices import load_prices
from billing.rating import token_charge
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
    """What writing each cache and keeping it up to now comes to; hits are charged to the requests."""
    segments = find_segments(session, cache_ids)
    if not segments:
        return {}
    prices = load_prices(session)

    def cost(segment: StorageSegment) -> Cost:
        write = prices.at(segment.project_id, segment.model, Meter.CACHE_WRITE_TOKENS, segment.started_at)
        written = token_charge(segment.token_count, write.nano_usd_per_million)
        kept = storage_charges(segment, segment.started_at, now, prices)
        return Cost(
            (
                (Meter.CACHE_WRITE_TOKENS.value, written),
                (Meter.CACHE_STORAGE_TOKEN_SECONDS.value, sum(charge.amount_nano_usd for charge in kept)),
            ),
            0,
        )

    return {segment.cache_id: cost(segment) for segment in segments}
