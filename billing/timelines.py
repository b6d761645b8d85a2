"""The one rule by which a price is found: a project's own before everybody's, then a model's own before any model's."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from billing.meters import Meter
from billing.price import ANY, Price
from core.errors import PriceMissing


class Span(NamedTuple):
    """A stretch of time, half-open, and the price that applies in it; end None: for ever."""

    start: datetime
    end: datetime | None
    price: Price


class Prices:
    """Prices as they are stored, for looking up many."""

    def __init__(self, prices: Iterable[Price]) -> None:
        self._by_subject: dict[tuple[str, str, Meter], list[Price]] = {}
        for price in prices:
            self._by_subject.setdefault(price.subject, []).append(price)
        self._projects = {project_id for project_id, _, _ in self._by_subject}
        self._timelines: dict[tuple[str, str, Meter], list[Span]] = {}

    def at(self, project_id: str, model: str, meter: Meter, instant: datetime) -> Price:
        """The one price that holds at an instant. Raises PriceMissing."""
        spans = self.timeline(project_id, model, meter)
        count = bisect_right(spans, instant, key=lambda span: span.start)
        if count == 0 or not spans[count - 1].price.holds_at(instant):
            raise price_missing(model, [meter], instant)
        return spans[count - 1].price

    def between(
        self, project_id: str, model: str, meter: Meter, start: datetime, end: datetime
    ) -> Iterator[tuple[datetime, datetime, Price]]:
        """Cut [start, end) where the price changes; the pieces tile it. Raises PriceMissing for a gap."""
        for span in self.timeline(project_id, model, meter):
            if span.end is not None and span.end <= start:
                continue
            if start >= end:
                return
            if start < span.start:
                raise price_missing(model, [meter], start)
            until = end if span.end is None else min(span.end, end)
            yield start, until, span.price
            start = until
        if start < end:
            raise price_missing(model, [meter], start)

    def timeline(self, project_id: str, model: str, meter: Meter) -> Sequence[Span]:
        """All that ever applies to a project and a model, in order of time; there may be gaps."""
        subject = (project_id if project_id in self._projects else ANY, model, meter)
        spans = self._timelines.get(subject)
        if spans is None:
            spans = self._timelines[subject] = _resolve(self._candidates(*subject))
        return spans

    def _candidates(self, project_id: str, model: str, meter: Meter) -> list[list[Price]]:
        """The prices that can apply, those that go before others first."""
        subjects = dict.fromkeys((who, what, meter) for who in (project_id, ANY) for what in (model, ANY))
        return [self._by_subject.get(subject, []) for subject in subjects]


def price_missing(model: str, meters: Sequence[Meter], at: datetime) -> PriceMissing:
    return PriceMissing(
        f'Model "{model}" has no price for {", ".join(meters)} at {at:%Y-%m-%dT%H:%M:%SZ}, so this cannot be sold. Its '
        f'operator adds [[price]] rows for it, or for model "{ANY}", to the price book; 0 is allowed.',
        field="price_book",
    )


def _resolve(candidates: list[list[Price]]) -> list[Span]:
    """Between neighbouring instants at which anything changes, the first candidate that holds applies."""
    prices = [price for each in candidates for price in each]
    edges = {price.effective_from for price in prices}
    edges |= {price.effective_to for price in prices if price.effective_to is not None}
    spans: list[Span] = []
    for start, end in pairwise([*sorted(edges), None]):
        assert start is not None
        price = next((each for each in prices if each.holds_at(start)), None)
        if price is None:
            continue
        if spans and spans[-1].price is price and spans[-1].end == start:
            spans[-1] = Span(spans[-1].start, end, price)
        else:
            spans.append(Span(start, end, price))
    return spans
