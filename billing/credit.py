"""Prepaid credit: granted by an operator, used by charges before anything else, and, for who pays beforehand, a bound."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy.orm import Session

from billing.holds import hold_what_is_open, let_go_if_free
from billing.ledger import Periods
from billing.limits import MOST_NANO_USD
from billing.rating import whole_hour
from billing.terms import forget, lock_alone
from core.errors import InvalidArgument
from core.texts import LONGEST_NOTE, check_text
from models import credit as rows
from models.credit import Credit
from models.hold import sum_held
from models.ledger_entry import Account, EntryKind, LedgerEntry, append, find_entries, new_entry

_LONGEST_REFERENCE = 200


class Granted(NamedTuple):
    """A grant on record. is_new: it was not there before; else nothing was given once more."""

    entry: LedgerEntry
    is_new: bool


def grant(
    session: Session,
    project_id: str,
    amount_nano_usd: int,
    reference: str,
    now: datetime,
    note: str | None = None,
) -> Granted:
    """Give a project credit, in the caller's write unit; charges from now on use it.

    reference: the operator's own name for this grant, such as a payment's number: with the same one and amount nothing is
    given twice, with another amount it raises InvalidArgument.
    """
    _check(amount_nano_usd, reference, note)
    lock_alone(session, project_id)
    key = f"grant:{reference}"
    for entry in find_entries(session, project_id, [key]):
        _check_repeats(entry, reference, amount_nano_usd)
        return Granted(entry, is_new=False)
    if _credit(session, project_id).granted_nano_usd + amount_nano_usd > MOST_NANO_USD:
        raise InvalidArgument(
            f"amount would make more than {MOST_NANO_USD} nano-USD of credit in all.", field="amount"
        )
    facts = new_entry(
        project_id=project_id,
        dedupe_key=key,
        kind=EntryKind.GRANT,
        debit=Account.GRANTED,
        credit=Account.CREDIT,
        hour=whole_hour(now),
        period=Periods(session, now).present(),
        amount_nano_usd=amount_nano_usd,
        posted_at=now,
        note=note,
    )
    entry = append(session, LedgerEntry(**facts))
    rows.add_granted(session, project_id, amount_nano_usd)
    forget(session, project_id)
    return Granted(entry, is_new=True)


def set_prepaid(session: Session, project_id: str, *, is_prepaid: bool) -> Credit:
    """Let a project pay beforehand, or not, in the caller's write unit: then what credit does not cover is refused.

    What runs and lives is held against the credit there is, and is owed even where that is too little.
    """
    terms = lock_alone(session, project_id)
    _credit(session, project_id)
    if is_prepaid:
        hold_what_is_open(session, project_id, terms)
    held = sum_held(session, project_id) if is_prepaid else 0
    rows.set_prepaid(session, project_id, held, is_prepaid=is_prepaid)
    let_go_if_free(session, project_id)
    return _credit(session, project_id)


def _credit(session: Session, project_id: str) -> Credit:
    credit = rows.find_credit(session, project_id)
    if credit is None:
        credit = Credit(
            project_id=project_id, granted_nano_usd=0, used_nano_usd=0, held_nano_usd=0, is_prepaid=False
        )
        rows.insert_credit(session, credit)
    return credit


def _check(amount_nano_usd: int, reference: str, note: str | None) -> None:
    if not 0 < amount_nano_usd <= MOST_NANO_USD:
        raise InvalidArgument(
            f"amount must be more than 0 and at most {MOST_NANO_USD} nano-USD, not {amount_nano_usd}. Credit is not taken "
            "back: correct the charges that used it.",
            field="amount",
        )
    check_text("reference", reference, "name the grant", _LONGEST_REFERENCE)
    if note is not None:
        check_text("note", note, "say why", LONGEST_NOTE)


def _check_repeats(entry: LedgerEntry, reference: str, amount_nano_usd: int) -> None:
    if entry.amount_nano_usd != amount_nano_usd:
        raise InvalidArgument(
            f"reference {reference!r} is that of a grant of {entry.amount_nano_usd} nano-USD. Repeat that amount, or take a "
            "new reference.",
            field="reference",
        )
