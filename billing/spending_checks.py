"""What must hold of limits, holds and credit, each as queries that find what breaks it. None of them changes anything.

That all accounts together sum to zero needs no query: each entry moves one amount from one to another.
"""

from collections.abc import Iterator

from sqlalchemy import Case, ColumnElement, Select, and_, case, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from models.cache import Cache, CacheState
from models.credit import Credit
from models.hold import Hold
from models.ledger_entry import CHARGES, EntryKind, LedgerEntry
from models.limit import WHOLE, Limit, LimitMonth
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState


def holds_have_a_reason(session: Session) -> Iterator[str]:
    """A hold is for a request that runs, a cache that is built, or storage that is not posted yet, of whom it says."""
    runs = exists().where(
        Usage.id == Hold.id,
        Usage.project_id == Hold.project_id,
        Usage.key_id == Hold.key_id,
        Usage.state == UsageState.RESERVED,
    )
    is_built = exists().where(
        Cache.id == Hold.cache_id, Cache.key_id == Hold.key_id, Cache.state == CacheState.PENDING
    )
    is_kept = exists().where(
        StorageSegment.cache_id == Hold.cache_id,
        StorageSegment.key_id == Hold.key_id,
        StorageSegment.accrued_until < StorageSegment.ends_at,
        Hold.id.like("storage:%"),
    )
    is_limited = or_(
        exists().where(Limit.project_id == Hold.project_id),
        exists().where(Credit.project_id == Hold.project_id, Credit.is_prepaid),
    )
    has_reason = or_(and_(Hold.cache_id.is_(None), runs), is_built, is_kept)
    for hold_id in session.scalars(select(Hold.id).where(~and_(has_reason, is_limited))):
        yield f"hold {hold_id}: what it was for is settled, or nothing limits its project"


def held_is_its_holds(session: Session) -> Iterator[str]:
    """What limits and credit say is held is what the open holds come to."""
    of_limit = and_(
        Hold.project_id == LimitMonth.project_id,
        Hold.month == LimitMonth.month,
        or_(LimitMonth.key_id == WHOLE, Hold.key_id == LimitMonth.key_id),
    )
    held = func.coalesce(func.sum(Hold.amount_nano_usd), 0)
    key = LimitMonth.project_id, LimitMonth.key_id, LimitMonth.month
    query = (
        select(*key, LimitMonth.held_nano_usd, held)
        .outerjoin(Hold, of_limit)
        .group_by(*key, LimitMonth.held_nano_usd)
        .having(LimitMonth.held_nano_usd != held)
    )
    for project_id, key_id, month, told, found in session.execute(query):
        yield f"{_words(project_id, key_id, month)}: {told} nano-USD are held, and its holds come to {found}"
    of_credit = (
        select(Credit.project_id, Credit.held_nano_usd, held)
        .outerjoin(Hold, and_(Hold.project_id == Credit.project_id, Credit.is_prepaid))
        .group_by(Credit.project_id, Credit.held_nano_usd)
        .having(Credit.held_nano_usd != held)
    )
    for project_id, told, found in session.execute(of_credit):
        yield f"credit of {project_id}: {told} nano-USD are held, and its holds come to {found}"


def spent_is_charged(session: Session) -> Iterator[str]:
    """What limits say is spent is what the ledger charged for their months."""
    # Summed once, for all limits and months.
    of_key = LedgerEntry.project_id, LedgerEntry.key_id
    in_month = func.coalesce(LedgerEntry.limit_month, LedgerEntry.period)
    charges = (
        select(*of_key, in_month.label("month"), func.sum(LedgerEntry.amount_nano_usd).label("amount"))
        .where(LedgerEntry.kind.in_(CHARGES))
        .group_by(*of_key, in_month)
        .subquery()
    )
    counts = and_(
        charges.c.project_id == LimitMonth.project_id,
        charges.c.month == LimitMonth.month,
        or_(LimitMonth.key_id == WHOLE, charges.c.key_id == LimitMonth.key_id),
    )
    charged = func.coalesce(func.sum(charges.c.amount), 0)
    key = LimitMonth.project_id, LimitMonth.key_id, LimitMonth.month
    query = (
        select(*key, LimitMonth.spent_nano_usd, charged)
        .outerjoin(charges, counts)
        .group_by(*key, LimitMonth.spent_nano_usd)
        .having(LimitMonth.spent_nano_usd != charged)
    )
    for project_id, key_id, month, told, found in session.execute(query):
        yield f"{_words(project_id, key_id, month)}: {told} nano-USD are spent, and its charges come to {found}"


def credit_is_its_entries(session: Session) -> Iterator[str]:
    """What was granted and used is what the ledger says, also of projects whose credit is not on record."""
    entries = (
        select(
            LedgerEntry.project_id,
            func.coalesce(func.sum(_amount_of(EntryKind.GRANT)), 0).label("granted"),
            func.coalesce(func.sum(_amount_of(EntryKind.CREDIT_USE)), 0).label("used"),
        )
        .where(LedgerEntry.kind.in_([EntryKind.GRANT, EntryKind.CREDIT_USE]))
        .group_by(LedgerEntry.project_id)
        .subquery()
    )
    query = (
        select(entries.c.project_id)
        .outerjoin(Credit, Credit.project_id == entries.c.project_id)
        .where(
            or_(
                Credit.project_id.is_(None),
                Credit.granted_nano_usd != entries.c.granted,
                Credit.used_nano_usd != entries.c.used,
            )
        )
    )
    without = select(Credit.project_id).where(
        Credit.granted_nano_usd + Credit.used_nano_usd > 0,
        Credit.project_id.not_in(select(entries.c.project_id)),
    )
    for project_id in [*session.scalars(query), *session.scalars(without)]:
        yield f"credit of {project_id}: it is not what its entries come to"


def credit_pays_charges(session: Session) -> Iterator[str]:
    """Each use of credit is of a charge, and pays no more than that came to; what is given back is of a correction likewise."""
    of_charge, of_correction = aliased(LedgerEntry), aliased(LedgerEntry)
    paid = _paid(of_charge, "credit:", LedgerEntry.corrects_id.is_(None)).where(
        or_(
            of_charge.id.is_(None),
            LedgerEntry.amount_nano_usd > of_charge.amount_nano_usd,
            LedgerEntry.hour != of_charge.hour,
            LedgerEntry.period != of_charge.period,
        )
    )
    given_back = _paid(of_correction, "credit-back:", LedgerEntry.corrects_id.is_not(None)).where(
        or_(
            of_correction.id.is_(None),
            of_correction.corrects_id.is_(None),
            LedgerEntry.amount_nano_usd >= 0,
            LedgerEntry.amount_nano_usd < of_correction.amount_nano_usd,
            LedgerEntry.hour != of_correction.hour,
            LedgerEntry.period != of_correction.period,
        )
    )
    for entry_id in session.scalars(paid):
        yield f"ledger entry {entry_id}: it pays no charge with credit, or more than the charge"
    for entry_id in session.scalars(given_back):
        yield f"ledger entry {entry_id}: it gives credit back for no correction, or more than that takes back"


SPENDING_CHECKS = (
    holds_have_a_reason,
    held_is_its_holds,
    spent_is_charged,
    credit_is_its_entries,
    credit_pays_charges,
)


def _paid(charge: type[LedgerEntry], prefix: str, condition: ColumnElement[bool]) -> Select[int]:
    """The uses of credit that meet a condition, each beside the charge that its key names after a prefix."""
    is_of = and_(
        charge.project_id == LedgerEntry.project_id,
        # Found by the index of keys: one that is put together of each charge would be looked for among all of the project's.
        charge.dedupe_key == func.substr(LedgerEntry.dedupe_key, len(prefix) + 1),
        LedgerEntry.dedupe_key.startswith(prefix),
        charge.kind.in_(CHARGES),
    )
    uses = select(LedgerEntry.id).outerjoin(charge, is_of)
    return uses.where(LedgerEntry.kind == EntryKind.CREDIT_USE, condition)


def _amount_of(kind: EntryKind) -> Case[int]:
    return case((LedgerEntry.kind == kind, LedgerEntry.amount_nano_usd), else_=0)


def _words(project_id: str, key_id: str, month: str) -> str:
    return f"limit of {project_id} {key_id or '(whole)'} in {month}"
