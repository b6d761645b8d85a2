"""From a row to its charges: which quantities it has, and the price of each at its own time."""

from dataclasses import dataclass

from billing.meters import Meter
from billing.periods import Period
from billing.prices import Prices
from billing.rating import seconds_between, storage_charge, token_charge, whole_second
from models.storage_segment import StorageSegment
from models.usage import Usage


@dataclass(frozen=True, slots=True)
class Charge:
    """A quantity and its price, before anything is added up.

    implicit_quantity: of tokens read, those for which no cache was named. They cost the same.
    """

    project_id: str
    cache_id: str | None
    meter: Meter
    quantity: int
    amount_nano_usd: int
    implicit_quantity: int = 0


def usage_charges(row: Usage, prices: Prices) -> list[Charge]:
    """Rate one finished usage row, at the prices of the instant it finished."""
    assert row.occurred_at is not None
    quantities = {
        Meter.CACHE_WRITE_TOKENS: row.cache_write_tokens,
        Meter.CACHE_READ_TOKENS: row.cache_read_tokens,
        Meter.INPUT_TOKENS: row.input_tokens,
        Meter.OUTPUT_TOKENS: row.output_tokens,
    }
    charges = []
    for meter, tokens in quantities.items():
        if tokens:
            price = prices.at(row.model, meter, row.occurred_at)
            amount = token_charge(tokens, price.nano_usd_per_million)
            implicit = row.implicit_cache_tokens if meter is Meter.CACHE_READ_TOKENS else 0
            charges.append(Charge(row.project_id, row.cache_id, meter, tokens, amount, implicit))
    return charges


def storage_charges(segment: StorageSegment, period: Period, prices: Prices) -> list[Charge]:
    """Rate what falls into a period of one segment: under each price, the difference of two cumulative floors."""
    started_at, ends_at = whole_second(segment.started_at), whole_second(segment.ends_at)
    start, end = whole_second(period.start), whole_second(period.end)
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    charges = []
    for piece_start, piece_end, price in prices.between(segment.model, meter, started_at, ends_at):
        first, last = max(start, piece_start), min(end, piece_end)
        if first < last:
            elapsed = range(seconds_between(piece_start, first), seconds_between(piece_start, last))
            quantity = segment.token_count * len(elapsed)
            amount = storage_charge(segment.token_count, elapsed, price.nano_usd_per_million)
            charges.append(Charge(segment.project_id, segment.cache_id, meter, quantity, amount))
    return charges
