"""What a cache would cost before it is made, and when it would pay; by the functions that bill it later.

Hits are taken to come evenly over its life, the first at once: so each has the prices of its own instant, those to come
included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise

from billing.break_even import hits_per_hour_to_keep
from billing.charges import Charge, storage_charges, usage_charges
from billing.meters import CREATE_METERS, GENERATE_METERS
from billing.report import Sums
from billing.timelines import Prices
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageKind, UsageState


@dataclass(frozen=True, slots=True)
class Plan:
    """A cache to come, kept from its activation to its end, and how it is to be used.

    project_id: whose prices; "*": everybody's. suffix_tokens, output_tokens: of each hit; the suffix is what its prompt has
    beyond the cache.
    """

    project_id: str
    model: str
    token_count: int
    start: datetime
    end: datetime
    hits: int
    suffix_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Quote:
    """sums: what the ledger will hold of the cache and its hits, by meter; of storage less where it lives for fewer seconds.

    hits_to_pay: the least number of hits with which it costs no more than doing without, by what a hit saves in the mean of
    its life; None where no number is enough.
    hits_per_hour_to_keep: how many pay for keeping it, at the prices of its start; None likewise.
    """

    plan: Plan
    sums: Sums
    hits_to_pay: int | None
    hits_per_hour_to_keep: Fraction | None


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch [begin, end) of a life, in microseconds of it, in which every hit has the same charges."""

    begin: int
    end: int
    life: int
    charges: Sequence[Charge]

    @property
    def saved_by_a_hit(self) -> int:
        return sum(charge.without_cache_nano_usd - charge.amount_nano_usd for charge in self.charges)

    def share_of(self, hits: int) -> int:
        """How many of so many hits fall into it: hit i of n comes when i/n of the life have passed."""
        return _ceil(self.end * hits, self.life) - _ceil(self.begin * hits, self.life)


def quote(plan: Plan, prices: Prices) -> Quote:
    """Price a plan; it ends after it starts. Raises PriceMissing where anything that it can come to owe has no price."""
    for meter in CREATE_METERS:
        prices.at(plan.project_id, plan.model, meter, plan.start)
    spans = _spans(plan, prices)
    sums = Sums()
    for charge in [*_written(plan, prices), *_kept(plan, prices)]:
        _add(sums, charge, 1)
    spent = sums.amount_nano_usd
    for span in spans:
        for charge in span.charges:
            _add(sums, charge, span.share_of(plan.hits))
    rate = hits_per_hour_to_keep(prices, plan.project_id, plan.model, plan.start)
    return Quote(plan, sums, _hits_to_pay(spans, spent), rate)


def _written(plan: Plan, prices: Prices) -> Sequence[Charge]:
    return usage_charges(_usage(plan, UsageKind.CREATE, plan.start, written=plan.token_count), prices)


def _kept(plan: Plan, prices: Prices) -> Sequence[Charge]:
    segment = StorageSegment(
        cache_id="",
        project_id=plan.project_id,
        key_id="",
        model=plan.model,
        token_count=plan.token_count,
        started_at=plan.start,
        ends_at=plan.end,
    )
    return storage_charges(segment, plan.start, plan.end, prices)


def _spans(plan: Plan, prices: Prices) -> Sequence[_Span]:
    """Cut the life where a price of a hit changes."""
    starts = {
        start
        for meter in GENERATE_METERS
        for start, _, _ in prices.between(plan.project_id, plan.model, meter, plan.start, plan.end)
    }
    edges = [*sorted(starts), plan.end]
    life = _microseconds(plan.end - plan.start)
    return [
        _Span(
            begin=_microseconds(start - plan.start),
            end=_microseconds(end - plan.start),
            life=life,
            charges=usage_charges(
                _usage(plan, UsageKind.GENERATE, start, read=plan.token_count, computed=plan.suffix_tokens),
                prices,
            ),
        )
        for start, end in pairwise(edges)
    ]


def _usage(
    plan: Plan, kind: UsageKind, at: datetime, *, written: int = 0, read: int = 0, computed: int = 0
) -> Usage:
    """A row as a create or a hit leaves it, which is never stored."""
    return Usage(
        id="",
        kind=kind,
        project_id=plan.project_id,
        key_id="",
        model=plan.model,
        state=UsageState.FINAL,
        prompt_tokens=read + computed,
        input_tokens=computed,
        cache_read_tokens=read,
        implicit_cache_tokens=0,
        cache_write_tokens=written,
        output_tokens=plan.output_tokens if kind is UsageKind.GENERATE else 0,
        created_at=at,
        occurred_at=at,
    )


def _hits_to_pay(spans: Sequence[_Span], spent: int) -> int | None:
    """Amounts are whole, so the least number is exact; where a hit comes to save more or less, it is so in the mean."""
    if spent == 0:
        return 0
    saved = sum(span.saved_by_a_hit * (span.end - span.begin) for span in spans)  # by a hit, times the life
    return _ceil(spent * spans[0].life, saved) if saved > 0 else None


def _add(sums: Sums, charge: Charge, times: int) -> None:
    """Each hit is rounded down by itself, so equal ones can be multiplied."""
    if times:
        sums.lines[charge.meter].add(
            charge.quantity * times,
            charge.amount_nano_usd * times,
            charge.without_cache_nano_usd * times,
            times,
        )


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
