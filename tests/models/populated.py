"""Rows for every table and every column of it, as a database holds them that has been used for a while."""

from sqlalchemy.orm import Session

from models.api_key import revoke_api_key
from models.cache import insert_cache
from models.idempotency_key import IdempotencyKey
from models.placement import Placement, Tier
from models.price import Price
from models.project import update_project
from models.storage_segment import StorageSegment
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
            Price(model="tiny", meter="input_tokens", nano_usd_per_million=7 * 10**12, effective_from=START),
        ]
    )


def _segment(customer: Customer, cache_id: str) -> StorageSegment:
    return StorageSegment(
        cache_id=cache_id,
        project_id=customer.project_id,
        model="tiny",
        token_count=3,
        started_at=START,
        ends_at=after(0.000001),
    )
