"""Every charge a second time, by other means, to prove the ledger: exact fractions over the rows that record what happened.

It shares no query, no price lookup and no arithmetic with what posts, and is slow: it exists to disagree.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from billing.charges import Charge
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
    meter: str
    price_id: int
    hour: datetime


Figures = Mapping[Place, tuple[int, int, int]]  # as MEASURES name them
_Charges = Iterator[tuple[Place, tuple[int, int, int]]]


class Recomputed(NamedTuple):
    """posted: what the ledger must have. provisional: storage since then. unpriced: what has no price, or two."""

    posted: Figures
    provisional: Figures
    unpriced: Sequence[str]


class _Sums:
    """Figures that are added up; hours before `since` are left out."""

    def __init__(self, since: datetime) -> None:
        self._since = since
        self._sums: dict[Place, Counter[int]] = {}

    def add(self, place: Place, figures: tuple[int, int, int]) -> None:
        if place.hour >= self._since:
            self._sums.setdefault(place, Counter()).update(dict(enumerate(figures)))

    def figures(self) -> Figures:
        return {place: (sum_[0], sum_[1], sum_[2]) for place, sum_ in self._sums.items()}


def recompute(session: Session, project_id: str, since: datetime, now: datetime) -> Recomputed:
    """What one project is to be charged for the hours from `since` on, from its usage rows and segments: storage as far as it
    says it is posted, and apart from that what has been kept since, up to `now`.
    """
    prices = session.scalars(select(Price)).all()
    due, provisional, unpriced = _Sums(since), _Sums(since), []
    usage = select(Usage).where(
        Usage.project_id == project_id, Usage.occurred_at >= since, Usage.state == UsageState.FINAL
    )
    with closing(session.scalars(usage.execution_options(yield_per=5_000))) as rows:
        for row in rows:
            try:
                for place, figures in _charges_of_usage(row, prices):
                    due.add(place, figures)
            except LookupError as error:
                unpriced.append(f"usage {row.id}: {error}")
    segments = select(StorageSegment).where(
        StorageSegment.project_id == project_id, StorageSegment.ends_at >= since
    )
    for segment in session.scalars(segments):
        posted_until = _second(segment.accrued_until)
        try:
            for start, place, figures in _charges_of_segment(segment, prices, since, now):
                (due if start < posted_until else provisional).add(place, figures)
        except LookupError as error:
            unpriced.append(f"cache {segment.cache_id}: {error}")
    return Recomputed(due.figures(), provisional.figures(), unpriced)


def posted(session: Session, project_id: str, since: datetime) -> Figures:
    """What one project is charged in the ledger for the hours from `since` on, without the corrections of entries, which
    stand for themselves.
    """
    sums = _Sums(since)
    entries = (
        select(LedgerEntry)
        .where(LedgerEntry.project_id == project_id, LedgerEntry.meter.is_not(None))
        .where(LedgerEntry.corrects_id.is_(None), LedgerEntry.hour >= since)
        .execution_options(yield_per=5_000)
    )
    with closing(session.scalars(entries)) as rows:
        for row in rows:
            sums.add(_place(row, row.meter or "", row.price_id or 0, row.hour), _figures(row))
    return sums.figures()


def told(charges: Iterable[Charge], since: datetime) -> Figures:
    """The same of charges that a report tells of."""
    sums = _Sums(since)
    for charge in charges:
        sums.add(_place(charge, charge.meter, charge.price_id, charge.hour), _figures(charge))
    return sums.figures()


def compare(found: Figures, expected: Figures, verb: str) -> Iterator[str]:
    """Name every figure that differs from the recomputation. verb: what was done with it: posted, told."""
    nothing = (0, 0, 0)
    # Few differ, or none: all of them in order would be much to keep.
    differing = {place for place, figures in found.items() if figures != expected.get(place, nothing)}
    differing |= {place for place, figures in expected.items() if figures != found.get(place, nothing)}
    for place in sorted(differing, key=repr):
        for measure, one, other in zip(
            MEASURES, found.get(place, nothing), expected.get(place, nothing), strict=True
        ):
            if one != other:
                yield f"{_words(place)}: {measure} {one} {verb}, {other} recomputed"


def _charges_of_usage(row: Usage, prices: Sequence[Price]) -> _Charges:
    assert row.occurred_at is not None
    named = row.prompt_tokens - row.input_tokens - row.implicit_cache_tokens
    has_prompt = row.input_tokens or named or row.implicit_cache_tokens
    computed = price_at(prices, row, Meter.INPUT_TOKENS, row.created_at) if has_prompt else None
    for meter, tokens, would_be_computed in (
        (Meter.INPUT_TOKENS, row.input_tokens, True),
        (Meter.CACHE_READ_TOKENS, named, True),
        (Meter.IMPLICIT_CACHE_READ_TOKENS, row.implicit_cache_tokens, True),
        (Meter.CACHE_WRITE_TOKENS, row.cache_write_tokens, False),
        (Meter.OUTPUT_TOKENS, row.output_tokens, False),
    ):
        if tokens:
            price = price_at(prices, row, meter, row.created_at)
            amount = floor(Fraction(price.nano_usd_per_million, 10**6) * tokens)
            without_cache = amount if meter is Meter.OUTPUT_TOKENS else 0
            if would_be_computed and computed is not None:
                without_cache = floor(Fraction(tokens, 10**6) * computed.nano_usd_per_million)
            yield _place(row, meter, price.id, row.occurred_at), (tokens, amount, without_cache)


def _charges_of_segment(
    segment: StorageSegment, prices: Sequence[Price], since: datetime, now: datetime
) -> Iterator[tuple[datetime, Place, tuple[int, int, int]]]:
    """Hour by hour from `since` on, and what is before it in pieces as the prices have them: each with the second it begins at,
    cut where the ledger ends; what a price has come to so far is rounded down, and counted from where it began to apply.
    """
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    first, cut = _second(segment.started_at), _second(segment.accrued_until)
    last = max(cut, _second(min(segment.ends_at, now)))
    changes = {at for price in prices for at in (price.effective_from, price.effective_to) if at is not None}
    hour = max(first, since).replace(minute=0, second=0)
    edges = {first, cut, last} | {at for at in changes if first < at < last}
    while hour < last:
        edges |= {hour} if hour > first else set()
        hour += timedelta(hours=1)
    moments = sorted(edges)
    current: Price | None = None
    exact, charged = Fraction(0), 0
    for start, end in pairwise(moments):
        price = price_at(prices, segment, meter, start)
        if current is None or price.id != current.id:
            current, exact, charged = price, Fraction(0), 0
        token_seconds = segment.token_count * round((end - start).total_seconds())
        exact += Fraction(token_seconds * price.nano_usd_per_million, 3_600_000_000)
        amount = floor(exact) - charged
        charged += amount
        yield start, _place(segment, meter, price.id, start), (token_seconds, amount, 0)


def price_at(prices: Sequence[Price], row: Usage | StorageSegment, meter: Meter, at: datetime) -> Price:
    """Find the price of what a row is about. Raises LookupError where there is none, or more than one."""
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


def _place(
    row: Usage | StorageSegment | LedgerEntry | Charge, meter: str, price_id: int, at: datetime
) -> Place:
    hour = datetime(at.year, at.month, at.day, at.hour, tzinfo=UTC)
    return Place(row.project_id, row.key_id or "", row.cache_id, row.model or "", str(meter), price_id, hour)


def _figures(row: LedgerEntry | Charge) -> tuple[int, int, int]:
    return row.quantity, row.amount_nano_usd, row.without_cache_nano_usd


def _second(instant: datetime) -> datetime:
    return instant - timedelta(microseconds=instant.microsecond)


def _words(place: Place) -> str:
    about = place.project_id, place.key_id, place.cache_id or "no cache", place.model, place.meter
    return f"{' / '.join(about)} at {place.hour:%Y-%m-%dT%H}h by price {place.price_id}"
