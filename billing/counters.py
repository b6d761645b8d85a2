"""The counters of limits and credit: what is held moves in them before the hold is written, what is spent after the entry.

A counter of a month is made when it is first needed, from the ledger and the open holds.
"""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from billing.money import usd
from billing.months import end_of
from billing.terms import Terms
from core.errors import CreditExhausted, SpendLimit
from models import credit as credits_, limit as limits
from models.hold import sum_held
from models.ledger_entry import sum_counted
from models.limit import WHOLE, Limit, LimitMonth


def move_held(
    session: Session, terms: Terms, key_id: str, changes: Mapping[str, int], refused_at: datetime | None
) -> None:
    """Hold more, or less, of each month: of the project's limit, then the key's, then its credit.

    refused_at: raise SpendLimit or CreditExhausted at that instant where more is held than there is room for; None: hold it
    in any case, for it is owed.
    """
    for limit in terms.limits_on(key_id):
        for month, amount in sorted(changes.items()):
            if amount:
                _move(session, limit, month, amount, refused_at if amount > 0 else None)
    total = sum(changes.values())
    if terms.is_prepaid and total:
        must_fit = refused_at is not None and total > 0
        if not credits_.add_held(session, terms.project_id, total, must_fit=must_fit):
            raise _exhausted(session, terms.project_id, total)


def make_counter(session: Session, limit: Limit, month: str) -> LimitMonth:
    """Give a limit's counter of a month, made of what is on record if there was none."""
    counter = limits.find_counter(session, limit, month)
    if counter is None:
        counter = LimitMonth(
            project_id=limit.project_id,
            key_id=limit.key_id,
            month=month,
            spent_nano_usd=sum_counted(session, limit.project_id, limit.key_id, month),
            held_nano_usd=sum_held(session, limit.project_id, limit.key_id, month),
        )
        limits.insert_counter(session, counter)
    return counter


def _move(session: Session, limit: Limit, month: str, amount: int, refused_at: datetime | None) -> None:
    at_most = None if refused_at is None else limit.hard_nano_usd
    if limits.add_held(session, limit, month, amount, at_most):
        return
    make_counter(session, limit, month)  # it is full, or there is none yet
    if not limits.add_held(session, limit, month, amount, at_most):
        assert refused_at is not None
        raise _reached(make_counter(session, limit, month), limit, amount, refused_at)


def _reached(counter: LimitMonth, limit: Limit, requested: int, at: datetime) -> SpendLimit:
    end, hard = end_of(counter.month), limit.hard_nano_usd or 0
    whose = "The project" if limit.key_id == WHOLE else f"The key {limit.key_id}"
    used = counter.spent_nano_usd + counter.held_nano_usd
    facts = {
        "quota": f"spend_per_{'project' if limit.key_id == WHOLE else 'key'}_and_month",
        "month": counter.month,
        "limit": str(hard),
        "in_use": str(used),
        "held": str(counter.held_nano_usd),
        "requested": str(requested),
    }
    return SpendLimit(
        f"{whose} may spend {usd(hard)} USD in {counter.month} (UTC). {usd(used)} are used, of which "
        f"{usd(counter.held_nano_usd)} are held for what runs and for caches that live, and this needs up to "
        f"{usd(requested)}. Send it again from {end:%Y-%m-%dT%H:%M:%SZ} on, ask for less, or have the limit raised.",
        metadata=facts if limit.key_id == WHOLE else facts | {"key": limit.key_id},
        retry_after_seconds=max(0.0, (end - at).total_seconds()),
    )


def _exhausted(session: Session, project_id: str, requested: int) -> CreditExhausted:
    credit = credits_.find_credit(session, project_id)
    assert credit is not None
    return CreditExhausted(
        f"The project pays beforehand and was given {usd(credit.granted_nano_usd)} USD of credit. "
        f"{usd(credit.used_nano_usd)} are used and {usd(credit.held_nano_usd)} held for what runs and for caches that live; "
        f"this needs up to {usd(requested)}. It can be sent again once more credit is granted, or ask for less.",
        metadata={
            "quota": "prepaid_credit",
            "limit": str(credit.granted_nano_usd),
            "in_use": str(credit.used_nano_usd + credit.held_nano_usd),
            "held": str(credit.held_nano_usd),
            "requested": str(requested),
        },
    )
