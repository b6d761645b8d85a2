"""A life through the pure functions of billing, against the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from bench.billing.entries import Difference, Figures, compare, compare_totals, correctable, correction_of
from bench.billing.history import Closed, Corrected, Fact, Kept, Looked, Used, Written, history
from bench.billing.lives import BEGINNING, MODEL, PROJECT, Change, Life
from bench.billing.names import CACHE, KEY, name_of, request_id
from bench.billing.oracle import Oracle
from billing.accrual import accrued_by
from billing.charges import Charge, storage_charges, usage_charges
from billing.differences import Figures as Sums, add_up, at_amount, at_quantity
from billing.ledger import Periods
from billing.meters import Meter
from billing.price import Price
from billing.rating import Rates
from billing.timelines import Prices
from models.ledger_entry import EntryKind
from models.storage_segment import StorageSegment
from models.usage import Usage


def difference(life: Life) -> Difference | None:
    """Between what billing charges and what the oracle does, at each look and in the end; None where there is none."""
    ours, oracle = Ledger(life), Oracle(life)
    for facts in history(life):
        for fact in facts:
            ours.take(fact)
            oracle.take(fact)
            if isinstance(fact, Looked) and ours.owed != oracle.owed:
                return compare_totals(ours.owed, oracle.owed, f"a look at {fact}")
    for month, amount in ours.closed.items():
        billed = sum(each.amount for each in ours.record.values() if each.month == month)
        if billed != amount:
            return compare_totals(billed, amount, f"{month}, after it was closed,")
    return compare(ours.record, oracle.record)


def instant(micros: int) -> datetime:
    return BEGINNING + timedelta(microseconds=micros)


def rows(changes: Sequence[Change]) -> list[Price]:
    """Prices as a book holds them: one without an end ends where the next of its project, model and meter begins."""
    in_order = sorted(changes, key=lambda each: (each.subject, each.at))
    made = []
    for number, (each, following) in enumerate(zip(in_order, [*in_order[1:], None], strict=True), 1):
        until = each.until
        if until is None and following is not None and following.subject == each.subject:
            until = following.at
        effective_to = None if until is None else instant(until)
        made.append(
            Price(
                each.project,
                each.model,
                Meter(each.meter),
                instant(each.at),
                effective_to,
                each.nano_usd,
                id=number,
            )
        )
    return made


class _Months(Periods):
    """Which months are open, known without a database."""

    def __init__(self, closed: dict[str, int], now: datetime) -> None:
        self._closed = closed
        self._now = now
        self._of = {}

    def _is_open(self, month: str) -> bool:
        return month not in self._closed


class Ledger:
    """What is posted, each charge once, as billing's ledger does it."""

    def __init__(self, life: Life) -> None:
        self.record: dict[str, Figures] = {}
        self.closed: dict[str, int] = {}
        self.owed = 0
        prices = rows(life.changes)
        self._prices = Prices(prices)
        self._by_id = {price.id: price for price in prices}
        self._priced: dict[
            str, tuple[int, int]
        ] = {}  # by name of a charge: its price, and when it was accepted

    def take(self, fact: Fact) -> None:
        match fact:
            case Written():
                self._post(usage_charges(_written(fact), self._prices), fact.at, fact.at)
            case Used():
                for _ in range(fact.times):
                    self._post(usage_charges(_used(fact), self._prices), fact.occurred, fact.created)
            case Kept():
                assert accrued_by(_segment(fact), instant(fact.now)) == instant(fact.end)
                for _ in range(fact.times):
                    self._post(self._kept(fact), fact.now, fact.start)
            case Closed():
                self.closed[fact.month] = sum(
                    each.amount for each in self.record.values() if each.month == fact.month
                )
            case Corrected():
                self._correct(fact)
            case Looked():
                self.owed = sum(each.amount for each in self.record.values())
                if fact.kept is not None:
                    self.owed += sum(charge.amount_nano_usd for charge in self._kept(fact.kept))

    def _kept(self, fact: Kept) -> list[Charge]:
        return storage_charges(_segment(fact), instant(fact.start), instant(fact.end), self._prices)

    def _post(self, charges: list[Charge], now: int, accepted: int) -> None:
        periods = _Months(self.closed, instant(now))
        for charge in charges:
            kind, month = periods.of(charge.hour)
            made = Figures(
                charge.meter,
                int(charge.hour.timestamp()) // 3_600,
                kind is EntryKind.CORRECTION,
                month,
                charge.quantity,
                charge.amount_nano_usd,
                charge.without_cache_nano_usd,
            )
            name = name_of(charge.dedupe_key)
            self._priced[name] = charge.price_id, accepted
            held = self.record.setdefault(name, made)
            if (held.hour, held.quantity, held.amount) != (made.hour, made.quantity, made.amount):
                raise AssertionError(
                    f"{charge.dedupe_key} comes to {made} the second time, and came to {held}"
                )

    def _correct(self, fact: Corrected) -> None:
        name = correctable(self.record, fact.pick)
        if name is None:
            return
        was = self.record[name]
        earlier = [self.record[each] for each in self.record if each.startswith(f"correction:{name}:")]
        stands = add_up(map(_sums, [was, *earlier]))
        meter = Meter(was.meter)
        if not fact.is_of_amount:
            wanted = at_quantity(
                meter, _sums(was), was.quantity * fact.eighths // 8, self._rates(name, meter)
            )
        elif stands.quantity:
            wanted = at_amount(meter, stands, was.amount * fact.eighths // 8)
        else:
            return
        if wanted != stands:
            self.record[correction_of(name, self.record)] = Figures(
                was.meter,
                was.hour,
                True,
                _Months(self.closed, instant(fact.now)).present(),
                *wanted.less(stands),
            )

    def _rates(self, name: str, meter: Meter) -> Rates:
        price_id, accepted = self._priced[name]
        computed = self._prices.at(PROJECT, MODEL, Meter.INPUT_TOKENS, instant(accepted))
        return Rates.of(meter, self._by_id[price_id].nano_usd_per_million, computed.nano_usd_per_million)


def _sums(figures: Figures) -> Sums:
    return Sums(figures.quantity, figures.amount, figures.without_cache)


@dataclass(frozen=True, slots=True)
class _Segment:
    """What is read of a segment. A row of SQLAlchemy's would be made ten times as slowly."""

    token_count: int
    started_at: datetime
    ends_at: datetime
    accrued_until: datetime
    cache_id: str = CACHE
    project_id: str = PROJECT
    key_id: str = KEY
    model: str = MODEL


@dataclass(frozen=True, slots=True)
class _Usage:
    """What is read of a usage row."""

    id: str
    created_at: datetime
    occurred_at: datetime
    input_tokens: int = 0
    cache_read_tokens: int = 0
    implicit_cache_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cache_id: str = CACHE
    project_id: str = PROJECT
    key_id: str = KEY
    model: str = MODEL


def _segment(fact: Kept) -> StorageSegment:
    made = _Segment(fact.tokens, instant(fact.first), instant(fact.last), instant(fact.start))
    return cast(StorageSegment, made)


def _written(fact: Written) -> Usage:
    made = _Usage(f"write:{CACHE}", instant(fact.at), instant(fact.at), cache_write_tokens=fact.tokens)
    return cast(Usage, made)


def _used(fact: Used) -> Usage:
    made = _Usage(
        request_id(fact.number),
        instant(fact.created),
        instant(fact.occurred),
        input_tokens=fact.suffix - fact.implicit,
        cache_read_tokens=fact.named + fact.implicit,
        implicit_cache_tokens=fact.implicit,
        output_tokens=fact.output,
    )
    return cast(Usage, made)
