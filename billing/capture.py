"""Counting what was charged, in the unit that posts it: against limits, and with credit as far as there is any.

Only entries that were really appended are counted, each once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from billing.counters import make_counter
from billing.months import month_of
from billing.terms import Terms
from models.credit import add_used, find_credit
from models.ledger_entry import Account, EntryKind, LedgerEntry, find_entries, insert_new, new_entry
from models.limit import WHOLE, add_spent


class Counted(NamedTuple):
    """What counts of a charge that was appended. limit_month: against whose limits; None: those of its period."""

    project_id: str
    dedupe_key: str
    key_id: str
    cache_id: str | None
    hour: datetime
    period: str
    limit_month: str | None
    amount_nano_usd: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Counted":
        return cls(**{name: row[name] for name in cls._fields})

    @classmethod
    def of_entry(cls, entry: LedgerEntry) -> "Counted":
        return cls(**{name: getattr(entry, name) for name in cls._fields})


def capture(session: Session, terms: Terms, charges: Sequence[Counted], now: datetime) -> None:
    """Count charges of one project: spent in their months, and paid with credit, the first of them first."""
    _count(session, terms, charges, now)
    if terms.credit is not None:
        _use_credit(session, terms.project_id, charges, now)


def capture_correction(
    session: Session, terms: Terms, correction: LedgerEntry, corrected: Sequence[LedgerEntry], now: datetime
) -> None:
    """Count a correction: of what it takes back, credit that paid for it is given back.

    corrected: the charge and its earlier corrections. Credit comes back once it paid for more than is charged.
    """
    counted = Counted.of_entry(correction)
    if correction.amount_nano_usd > 0:
        capture(session, terms, [counted], now)
        return
    _count(session, terms, [counted], now)
    uses = find_entries(session, terms.project_id, [_use_key(each.dedupe_key) for each in corrected])
    refunds = find_entries(session, terms.project_id, [_refund_key(each.dedupe_key) for each in corrected])
    paid = sum(each.amount_nano_usd for each in (*uses, *refunds))
    charged = sum(each.amount_nano_usd for each in corrected) + correction.amount_nano_usd
    back = paid - charged
    if back > 0:
        refund = _use(counted, -back, now) | {
            "dedupe_key": _refund_key(correction.dedupe_key),
            "corrects_id": min(each.id for each in uses),
        }
        insert_new(session, [refund])
        add_used(session, terms.project_id, -back)


def _count(session: Session, terms: Terms, charges: Sequence[Counted], now: datetime) -> None:
    for limit in terms.limits:
        spent: Counter[str] = Counter()
        for charge in charges:
            if limit.key_id in (WHOLE, charge.key_id):
                spent[charge.limit_month or charge.period] += charge.amount_nano_usd
        for month, amount in sorted(spent.items()):
            # A counter that is made now finds the charges in the ledger. None is made of a month from before the limit.
            if amount and not add_spent(session, limit, month, amount) and month >= month_of(now):
                make_counter(session, limit, month)


def _use_credit(session: Session, project_id: str, charges: Sequence[Counted], now: datetime) -> None:
    credit = find_credit(session, project_id)
    left = 0 if credit is None else credit.balance_nano_usd
    uses = []
    for charge in charges:
        amount = min(left, charge.amount_nano_usd)
        if amount > 0:
            left -= amount
            uses.append(_use(charge, amount, now))
    if uses:
        appended = insert_new(session, uses)
        assert len(appended) == len(uses), "a charge that is new was never paid before"
        add_used(session, project_id, sum(use["amount_nano_usd"] for use in uses))


def _use(charge: Counted, amount: int, now: datetime) -> dict[str, Any]:
    """An entry that pays so much of a charge with credit, in the hour and month of the charge."""
    return new_entry(
        project_id=charge.project_id,
        dedupe_key=_use_key(charge.dedupe_key),
        kind=EntryKind.CREDIT_USE,
        debit=Account.CREDIT,
        credit=Account.RECEIVABLE,
        cache_id=charge.cache_id,
        hour=charge.hour,
        period=charge.period,
        amount_nano_usd=amount,
        posted_at=now,
    )


def _use_key(charge_key: str) -> str:
    return f"credit:{charge_key}"


def _refund_key(correction_key: str) -> str:
    return f"credit-back:{correction_key}"
