"""Posting: charges become ledger entries, each once, in the write unit of the event that they are for.

A charge occurs in an hour and is billed in the month of it. Where that month was closed, it is posted as a correction and
billed in the open one; its hour stays what it was.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from sqlalchemy.orm import Session

from billing.capture import Counted, capture
from billing.charges import Charge
from billing.months import month_of
from billing.terms import lock_terms, lock_terms_of
from core.errors import LedgerConflict
from models.billing_period import is_open
from models.ledger_entry import Account, EntryKind, LedgerEntry, find_entries, insert_new, new_entry

log = logging.getLogger(__name__)


def post(
    session: Session, charges: Iterable[Charge], now: datetime, *, limit_month: str | None = None
) -> int:
    """Append what is not posted yet, count it against limits and credit, and give how many entries that was.

    limit_month: against whose limits it counts, where that need not be the month in which it is billed. Commits nothing.

    Raises LedgerConflict, and appends nothing, where a charge was posted already with other figures: that is an error of
    ours, never to be passed over.
    """
    periods = Periods(session, now)
    due = list(charges)
    lock_terms_of(session, (charge.project_id for charge in due))
    entries = [_entry(charge, periods, now, limit_month) for charge in due]
    appended = insert_new(session, entries)
    known = [charge for charge in due if (charge.project_id, charge.dedupe_key) not in appended]
    for _, conflict in _conflicts(session, known):
        raise conflict
    _capture(
        session, [entry for entry in entries if (entry["project_id"], entry["dedupe_key"]) in appended], now
    )
    return len(appended)


def post_events(session: Session, events: Mapping[str, Sequence[Charge]], now: datetime) -> dict[str, str]:
    """Append the charges of many events as `post` does, and pass over those events that it would raise for.

    Gives why for each event that is passed over. Of such an event nothing is appended.
    """
    # Locks that are taken within a savepoint go with it.
    lock_terms_of(session, (charge.project_id for charges in events.values() for charge in charges))
    try:
        with session.begin_nested():
            post(session, chain.from_iterable(events.values()), now)
    except LedgerConflict:
        of_key = {(each.project_id, each.dedupe_key): event for event in events for each in events[event]}
        found = _conflicts(session, list(chain.from_iterable(events.values())))
        conflicts = {of_key[charge.project_id, charge.dedupe_key]: str(error) for charge, error in found}
        post(session, chain.from_iterable(events[event] for event in events if event not in conflicts), now)
        return conflicts
    return {}


def _capture(session: Session, entries: Iterable[dict[str, Any]], now: datetime) -> None:
    """Count what was appended against the limits and the credit of its project, where it has any."""
    counted: dict[str, list[Counted]] = defaultdict(list)
    for entry in entries:
        counted[entry["project_id"]].append(Counted.of(entry))
    for project_id in sorted(counted):
        terms = lock_terms(session, project_id)
        if terms is not None:
            capture(session, terms, counted[project_id], now)


class Periods:
    """Which months are open, each asked once; they stay so until the unit ends."""

    def __init__(self, session: Session, now: datetime) -> None:
        self._session = session
        self._now = now
        self._open: dict[str, bool] = {}
        self._of: dict[datetime, tuple[EntryKind, str]] = {}

    def of(self, hour: datetime) -> tuple[EntryKind, str]:
        """As what, and in which month, a charge of an hour is billed."""
        if hour not in self._of:
            month = month_of(hour)
            is_open = self._is_open(month)
            self._of[hour] = (EntryKind.USAGE, month) if is_open else (EntryKind.CORRECTION, self.present())
        return self._of[hour]

    def present(self) -> str:
        """The first open month from now on: the present one, unless the clock was set back behind a closing."""
        day = self._now
        while not self._is_open(month_of(day)):
            day = day.replace(day=1) + timedelta(days=31)
        return month_of(day)

    def _is_open(self, month: str) -> bool:
        if month not in self._open:
            self._open[month] = is_open(self._session, month)
        return self._open[month]


def _entry(charge: Charge, periods: Periods, now: datetime, limit_month: str | None) -> dict[str, Any]:
    kind, period = periods.of(charge.hour)
    return new_entry(
        project_id=charge.project_id,
        dedupe_key=charge.dedupe_key,
        kind=kind,
        debit=Account.RECEIVABLE,
        credit=Account.REVENUE,
        meter=charge.meter,
        price_id=charge.price_id,
        key_id=charge.key_id,
        cache_id=charge.cache_id,
        model=charge.model,
        hour=charge.hour,
        period=period,
        limit_month=None if limit_month == period else limit_month,
        quantity=charge.quantity,
        amount_nano_usd=charge.amount_nano_usd,
        without_cache_nano_usd=charge.without_cache_nano_usd,
        posted_at=now,
    )


def _conflicts(session: Session, charges: Iterable[Charge]) -> Iterator[tuple[Charge, LedgerConflict]]:
    """Which of the charges were posted before with other figures: then something is badly wrong."""
    by_project: dict[str, dict[str, Charge]] = defaultdict(dict)
    for charge in charges:
        by_project[charge.project_id][charge.dedupe_key] = charge
    for project_id, of_project in by_project.items():
        for entry in find_entries(session, project_id, of_project):
            charge = of_project[entry.dedupe_key]
            if not _is_same(entry, charge):
                yield charge, _conflict(entry, charge)


def _is_same(entry: LedgerEntry, charge: Charge) -> bool:
    posted = entry.meter, entry.price_id, entry.hour, entry.quantity, entry.amount_nano_usd
    derived = charge.meter, charge.price_id, charge.hour, charge.quantity, charge.amount_nano_usd
    return posted == derived


def _conflict(entry: LedgerEntry, charge: Charge) -> LedgerConflict:
    return LedgerConflict(
        f"Ledger entry {entry.id} ({entry.dedupe_key}) holds {entry.quantity} for {entry.amount_nano_usd} nano-USD, and "
        f"the same event is now charged {charge.quantity} for {charge.amount_nano_usd}. It was not posted again. Run "
        "`headstart billing verify`.",
        metadata={"entry": str(entry.id)},
    )
