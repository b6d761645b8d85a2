"""Every charge a second time, by other means, to prove the ledger: exact fractions over the rows that record what happened.

It shares no query, no price lookup and no arithmetic with what posts, and is slow: it exists to disagree.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from billing.meters import Meter
from models.ledger_entry import LedgerEntry
from models.price import Price
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState

MEASURES = ("quantity", "nano-USD", "nano-USD without a cache")


class Place(NamedTuple):
    """What a figure is about."""

    project_id: str
    key_id: str
    cache_id: str | None
    model: str
    meter: Meter
    price_id: int
    hour: datetime


Figures = Mapping[Place, tuple[int, int, int]]  # as MEASURES name them


def recompute(session: Session, project_id: str, since: datetime) -> Figures:
    """What one project is to be charged for the hours from `since` on, from its usage rows and segments: storage as far as it
    says it is posted.

    Raises LookupError where a price is missing.
    """
    prices = session.scalars(select(Price)).all()
    sums: dict[Place, Counter[int]] = {}
    for place, figures in _charges(session, project_id, since, prices):
        if place.hour >= since:
            sums.setdefault(place, Counter()).update(dict(enumerate(figures)))
    return {place: (sum_[0], sum_[1], sum_[2]) for place, sum_ in sums.items()}


def posted(session: Session, project_id: str, since: datetime) -> Figures:
    """What one project is charged in the ledger for the hours from `since` on, without the corrections of entries, which
    stand for themselves.
    """
    sums: dict[Place, Counter[int]] = {}
    for row in session.scalars(
        select(LedgerEntry)
        .where(LedgerEntry.project_id == project_id, LedgerEntry.meter.is_not(None))
        .where(LedgerEntry.corrects_id.is_(None), LedgerEntry.hour >= since)
        .execution_options(yield_per=5_000)
    ):
        assert row.meter is not None
        assert row.price_id is not None
        place = Place(
            row.project_id,
            row.key_id or "",
            row.cache_id,
            row.model or "",
            Meter(row.meter),
            row.price_id,
            row.hour,
        )
        figures = row.quantity, row.amount_nano_usd, row.without_cache_nano_usd
        sums.setdefault(place, Counter()).update(dict(enumerate(figures)))
    return {place: (sum_[0], sum_[1], sum_[2]) for place, sum_ in sums.items()}


def compare(found: Figures, expected: Figures) -> Iterator[str]:
    """Name every figure in which the ledger differs from the recomputation."""
    nothing = (0, 0, 0)
    for place in sorted(found.keys() | expected.keys(), key=repr):
        for measure, one, other in zip(
            MEASURES, found.get(place, nothing), expected.get(place, nothing), strict=True
        ):
            if one != other:
                yield f"{_words(place)}: {measure} {one} posted, {other} recomputed"


def _charges(
    session: Session, project_id: str, since: datetime, prices: Sequence[Price]
) -> Iterator[tuple[Place, tuple[int, int, int]]]:
    usage = select(Usage).where(Usage.project_id == project_id, Usage.occurred_at >= since)
    usage = usage.execution_options(yield_per=5_000)
    with closing(session.scalars(usage)) as rows:
        for row in rows:
            if row.state == UsageState.FINAL:
                yield from _charges_of_usage(row, prices)
    segments = select(StorageSegment).where(
        StorageSegment.project_id == project_id, StorageSegment.ends_at >= since
    )
    for segment in session.scalars(segments):
        yield from _charges_of_segment(segment, prices)


def _charges_of_usage(row: Usage, prices: Sequence[Price]) -> Iterator[tuple[Place, tuple[int, int, int]]]:
    assert row.occurred_at is not None
    named = row.prompt_tokens - row.input_tokens - row.implicit_cache_tokens
    computed = _price_at(prices, row, Meter.INPUT_TOKENS, row.created_at) if row.prompt_tokens else None
    for meter, tokens, would_be_computed in (
        (Meter.INPUT_TOKENS, row.input_tokens, True),
        (Meter.CACHE_READ_TOKENS, named, True),
        (Meter.IMPLICIT_CACHE_READ_TOKENS, row.implicit_cache_tokens, True),
        (Meter.CACHE_WRITE_TOKENS, row.cache_write_tokens, False),
        (Meter.OUTPUT_TOKENS, row.output_tokens, False),
    ):
        if tokens:
            price = _price_at(prices, row, meter, row.created_at)
            amount = floor(Fraction(price.nano_usd_per_million, 10**6) * tokens)
            without_cache = amount if meter is Meter.OUTPUT_TOKENS else 0
            if would_be_computed:
                assert computed is not None
                without_cache = floor(Fraction(tokens, 10**6) * computed.nano_usd_per_million)
            yield _place(row, meter, price, row.occurred_at), (tokens, amount, without_cache)


def _charges_of_segment(
    segment: StorageSegment, prices: Sequence[Price]
) -> Iterator[tuple[Place, tuple[int, int, int]]]:
    """Hour by hour; what a price has come to so far is rounded down, and counted from where it began to apply."""
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    first, last = _second(segment.started_at), _second(segment.accrued_until)
    changes = {at for price in prices for at in (price.effective_from, price.effective_to) if at is not None}
    hour = first.replace(minute=0, second=0)
    edges = {first, last} | {at for at in changes if first < at < last}
    while hour < last:
        edges |= {hour} if hour > first else set()
        hour += timedelta(hours=1)
    moments = sorted(edges)
    current: Price | None = None
    exact, charged = Fraction(0), 0
    for start, end in pairwise(moments):
        price = _price_at(prices, segment, meter, start)
        if current is None or price.id != current.id:
            current, exact, charged = price, Fraction(0), 0
        token_seconds = segment.token_count * round((end - start).total_seconds())
        exact += Fraction(token_seconds * price.nano_usd_per_million, 3_600_000_000)
        amount = floor(exact) - charged
        charged += amount
        yield _place(segment, meter, price, start), (token_seconds, amount, 0)


def _price_at(prices: Sequence[Price], row: Usage | StorageSegment, meter: Meter, at: datetime) -> Price:
    for project_id in (row.project_id, "*"):
        for model in (row.model, "*"):
            held = [
                each
                for each in prices
                if (each.project_id, each.model, each.meter) == (project_id, model, meter)
                and each.effective_from <= at
                and (each.effective_to is None or at < each.effective_to)
            ]
            if len(held) > 1:
                raise LookupError(f"{len(held)} prices of {meter} for {model} at {at}")
            if held:
                return held[0]
    raise LookupError(f"no price of {meter} for {row.model} at {at}")


def _place(row: Usage | StorageSegment, meter: Meter, price: Price, at: datetime) -> Place:
    hour = datetime(at.year, at.month, at.day, at.hour, tzinfo=UTC)
    return Place(row.project_id, row.key_id, row.cache_id, row.model, meter, price.id, hour)


def _second(instant: datetime) -> datetime:
    return instant - timedelta(microseconds=instant.microsecond)


def _words(place: Place) -> str:
    about = place.project_id, place.key_id, place.cache_id or "no cache", place.model, place.meter
    return f"{' / '.join(about)} at {place.hour:%Y-%m-%dT%H}h by price {place.price_id}"
