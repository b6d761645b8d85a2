"""Rows for every table and every column of it, as a database holds them that has been used for a while."""

from sqlalchemy.orm import Session

from models.api_key import revoke_api_key
from models.billing_period import BillingPeriod, PeriodState
from models.cache import insert_cache
from models.credit import Credit
from models.hold import Hold
from models.idempotency_key import IdempotencyKey
from models.ledger_entry import Account, EntryKind, LedgerEntry
from models.ledger_hour import LedgerHour, LedgerWatermark
from models.limit import WHOLE, Limit, LimitMonth
from models.placement import Placement, Tier
from models.price import Price
from models.project import update_project
from models.storage_segment import StorageSegment
from models.token_quota import TokenQuota
from models.usage import UsageKind, UsageState
from tests.fakes.clock import START
from tests.models.rows import (
    ACTIVE,
    DELETED,
    EXPIRED,
    FAILED,
    Customer,
    add_customer,
    add_key,
    after,
    make_cache,
    make_usage,
)

_STATES: dict[str, dict[str, object]] = {
    "pending": {},
    "active": ACTIVE,
    "expired": EXPIRED,
    "deleted": DELETED,
    "failed": FAILED,
}


def populate(session: Session) -> None:
    """Add two projects, the second with one cache in each state and everything that hangs on it."""
    update_project(session, add_customer(session, "without caches").project_id, reuses_kv=False)
    customer = add_customer(session, "with caches")
    revoke_api_key(session, add_key(session, None).id, after(5))
    for name, columns in _STATES.items():
        insert_cache(session, make_cache(customer, id=name, display_name=f"{name} ☂", **columns))
        if "activated_at" in columns:
            session.add(_segment(customer, name))
    session.add_all(
        [
            make_usage(customer, cache_id="active"),
            make_usage(
                customer,
                state=UsageState.FINAL,
                implicit_cache_tokens=2,
                output_tokens=9,
                occurred_at=after(3),
                end_reason="STOP",
            ),
            make_usage(customer, state=UsageState.VOID, occurred_at=after(4), end_reason="FAILED"),
            make_usage(
                customer,
                id="write:active",
                kind=UsageKind.CREATE,
                state=UsageState.FINAL,
                occurred_at=after(1),
                cache_id="active",
                prompt_tokens=0,
                input_tokens=0,
                cache_read_tokens=0,
                cache_write_tokens=3,
            ),
            Placement(cache_id="active", incarnation="inc_1", tier=Tier.RAM),
            IdempotencyKey(
                project_id=customer.project_id,
                key_digest=bytes(32),
                body_digest=bytes(range(32)),
                cache_id="active",
                created_at=START,
            ),
        ]
    )
    price = Price(
        model="tiny",
        meter="input_tokens",
        nano_usd_per_million=7 * 10**12,
        effective_from=START,
        effective_to=after(3600),
    )
    own = Price(
        project_id=customer.project_id,
        model="tiny",
        meter="input_tokens",
        nano_usd_per_million=5,
        effective_from=START,
        effective_to=after(60),
    )
    session.add_all([price, own])
    session.add_all(
        [
            BillingPeriod(month="2026-01", state=PeriodState.CLOSED, closed_at=after(9), amount_nano_usd=7),
            BillingPeriod(month="2026-02", state=PeriodState.OPEN),
        ]
    )
    session.flush()
    charge = _entry(customer, price.id, dedupe_key="gen:input_tokens", quantity=7, cache_id="active")
    session.add(charge)
    session.flush()
    session.add(
        _entry(
            customer,
            price.id,
            dedupe_key=f"correction:{charge.id}:1",
            kind=EntryKind.CORRECTION,
            corrects_id=charge.id,
            quantity=-7,
            note="by mistake ☂",
            limit_month="2026-01",
        )
    )
    session.add_all(
        [
            LedgerHour(
                hour=START,
                project_id=customer.project_id,
                key_id=customer.key_id,
                cache_id="active",
                model="tiny",
                meter="input_tokens",
                quantity=7,
                amount_nano_usd=49,
                without_cache_nano_usd=49,
                entry_count=1,
            ),
            LedgerWatermark(id=1, entry_id=charge.id),
        ]
    )
    session.add_all([_entry(customer, None, **_paid(kind, amount)) for kind, amount in _CREDIT.items()])
    for row in _limit(customer):  # the second refers to the first
        session.add(row)
        session.flush()


def _entry(customer: Customer, price_id: int | None, **changes: object) -> LedgerEntry:
    columns: dict[str, object] = {
        "project_id": customer.project_id,
        "kind": EntryKind.USAGE,
        "debit": Account.RECEIVABLE,
        "credit": Account.REVENUE,
        "meter": "input_tokens",
        "price_id": price_id,
        "key_id": customer.key_id,
        "model": "tiny",
        "hour": START,
        "period": "2026-02",
        "amount_nano_usd": 0,
        "without_cache_nano_usd": 0,
        "posted_at": after(3),
    }
    return LedgerEntry(**(columns | changes))


def _segment(customer: Customer, cache_id: str) -> StorageSegment:
    return StorageSegment(
        cache_id=cache_id,
        project_id=customer.project_id,
        key_id=customer.key_id,
        model="tiny",
        token_count=3,
        started_at=START,
        ends_at=after(0.000001),
        accrued_until=START,
    )


_CREDIT = {EntryKind.GRANT: 100, EntryKind.CREDIT_USE: 7}


def _paid(kind: EntryKind, amount: int) -> dict[str, object]:
    is_grant = kind is EntryKind.GRANT
    return {
        "dedupe_key": f"{kind}",
        "kind": kind,
        "debit": Account.GRANTED if is_grant else Account.CREDIT,
        "credit": Account.CREDIT if is_grant else Account.RECEIVABLE,
        "meter": None,
        "key_id": None,
        "model": None,
        "quantity": 0,
        "amount_nano_usd": amount,
    }


def _limit(customer: Customer) -> list[object]:
    project_id = customer.project_id
    return [
        Limit(project_id=project_id, key_id=WHOLE, hard_nano_usd=90, soft_nano_usd=50, set_at=START),
        LimitMonth(
            project_id=project_id,
            key_id=WHOLE,
            month="2026-02",
            spent_nano_usd=-5,
            held_nano_usd=10,
            soft_told_at=after(8),
        ),
        Hold(
            id="storage:active:2026-02",
            project_id=project_id,
            key_id=customer.key_id,
            cache_id="active",
            month="2026-02",
            amount_nano_usd=10,
        ),
        Credit(
            project_id=project_id,
            granted_nano_usd=100,
            used_nano_usd=7,
            held_nano_usd=10,
            is_prepaid=True,
        ),
        TokenQuota(project_id=project_id, model="tiny", max_cached_tokens=2**40),
    ]
