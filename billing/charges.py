"""From a row to its charges: which quantities it has, what each costs, and what it would have cost without a cache."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from billing.meters import READ_METERS, Meter
from billing.rating import (
    HOUR,
    Rates,
    seconds_between,
    storage_charge,
    token_charge,
    whole_hour,
    whole_second,
)
from billing.timelines import Prices
from models.storage_segment import StorageSegment
from models.usage import Usage


@dataclass(frozen=True, slots=True)
class Charge:
    """A quantity of a meter in one hour, and its price.

    dedupe_key: made of the facts, so that the same event can be charged once only. without_cache_nano_usd: what the same
    prompt would have cost had nothing been cached: what was read at the price of input, and nothing written or kept.
    """

    dedupe_key: str
    project_id: str
    key_id: str
    cache_id: str | None
    model: str
    meter: Meter
    price_id: int
    hour: datetime
    quantity: int
    amount_nano_usd: int
    without_cache_nano_usd: int


def usage_charges(row: Usage, prices: Prices) -> list[Charge]:
    """Charge a usage row for the hour in which it ended, at the prices that held when it was accepted: a create when its cache was activated."""
    assert row.occurred_at is not None
    quantities = {
        Meter.CACHE_WRITE_TOKENS: row.cache_write_tokens,
        Meter.CACHE_READ_TOKENS: row.cache_read_tokens - row.implicit_cache_tokens,
        Meter.IMPLICIT_CACHE_READ_TOKENS: row.implicit_cache_tokens,
        Meter.INPUT_TOKENS: row.input_tokens,
        Meter.OUTPUT_TOKENS: row.output_tokens,
    }
    charges = []
    for meter, tokens in quantities.items():
        if tokens:
            about = row.project_id, row.model
            price = prices.at(*about, meter, row.created_at)
            input_ = prices.at(*about, Meter.INPUT_TOKENS, row.created_at) if meter in READ_METERS else price
            rates = Rates.of(meter, price.nano_usd_per_million, input_.nano_usd_per_million)
            charges.append(
                Charge(
                    dedupe_key=f"{row.id}:{meter}",
                    project_id=row.project_id,
                    key_id=row.key_id,
                    cache_id=row.cache_id,
                    model=row.model,
                    meter=meter,
                    price_id=price.id,
                    hour=whole_hour(row.occurred_at),
                    quantity=tokens,
                    amount_nano_usd=token_charge(tokens, rates.own),
                    without_cache_nano_usd=token_charge(tokens, rates.without_cache),
                )
            )
    return charges


def storage_charges(segment: StorageSegment, start: datetime, end: datetime, prices: Prices) -> list[Charge]:
    """Charge what falls into [start, end) of one segment, by the hour: each the difference of two cumulative floors.

    What is counted runs from where a price begins to apply to the segment, so the pieces of any cut sum to the whole.
    """
    first, last = whole_second(segment.started_at), whole_second(segment.ends_at)
    start, end = max(first, whole_second(start)), min(last, whole_second(end))
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    charges = []
    for piece_start, piece_end, price in prices.between(
        segment.project_id, segment.model, meter, first, last
    ):
        for hour, begin, until in _hours(max(start, piece_start), min(end, piece_end)):
            elapsed = range(seconds_between(piece_start, begin), seconds_between(piece_start, until))
            charges.append(
                Charge(
                    dedupe_key=f"storage:{segment.cache_id}:{price.id}:{int(begin.timestamp())}",
                    project_id=segment.project_id,
                    key_id=segment.key_id,
                    cache_id=segment.cache_id,
                    model=segment.model,
                    meter=meter,
                    price_id=price.id,
                    hour=hour,
                    quantity=segment.token_count * len(elapsed),
                    amount_nano_usd=storage_charge(segment.token_count, elapsed, price.nano_usd_per_million),
                    without_cache_nano_usd=0,
                )
            )
    return charges


def storage_so_far(segment: StorageSegment, until: datetime, prices: Prices) -> int:
    """What the charges of one segment up to an instant come to, in nano-USD, without cutting a long life into its hours."""
    first, last = whole_second(segment.started_at), whole_second(min(segment.ends_at, until))
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    return sum(
        storage_charge(segment.token_count, range(seconds_between(start, end)), price.nano_usd_per_million)
        for start, end, price in prices.between(segment.project_id, segment.model, meter, first, last)
    )


def _hours(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime, datetime]]:
    """Cut [start, end) at whole hours of UTC: each hour, and what of it lies inside."""
    while start < end:
        hour = whole_hour(start)
        until = min(hour + HOUR, end)
        yield hour, start, until
        start = until
