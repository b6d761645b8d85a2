"""Usage rows: what each generation consumed, reserved before the work and settled once after it; and what each create has written.

Every function needs an open write unit and commits nothing. A row that becomes owed is charged in the same unit. One that was
settled is never changed again: a second finalise or void, or one under another attempt, answers False and changes nothing.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from billing.catching_up import Unit
from billing.charges import Charge, usage_charges
from billing.holds import hold_of, hold_request, release, release_settled
from billing.ledger import post, post_events
from billing.prices import load_prices, prices_at
from billing.terms import lock_terms_of
from core.errors import PriceMissing
from models import usage as rows
from models.usage import Usage, UsageKind, UsageState


def reserve(
    session: Session,
    *,
    request_id: str,
    attempt: int,
    project_id: str,
    key_id: str,
    cache_id: str | None,
    model: str,
    incarnation: str,
    prompt_tokens: int,
    cache_read_tokens: int,
    at: datetime,
    most_output_tokens: int = 0,
) -> None:
    """Announce a generation. Nothing is owed until it is finalised; with a cache_id the row is the lease on it.

    most_output_tokens: of all its candidates. Raises SpendLimit or CreditExhausted where there is no room for what it may cost.
    """
    row = Usage(
        id=request_id,
        kind=UsageKind.GENERATE,
        project_id=project_id,
        key_id=key_id,
        cache_id=cache_id,
        model=model,
        state=UsageState.RESERVED,
        attempt=attempt,
        incarnation=incarnation,
        prompt_tokens=prompt_tokens,
        input_tokens=prompt_tokens - cache_read_tokens,
        cache_read_tokens=cache_read_tokens,
        cache_write_tokens=0,
        output_tokens=0,
        most_output_tokens=most_output_tokens,
        created_at=at,
    )
    hold_request(session, row)
    rows.insert(session, row)


def finalise(
    session: Session,
    request_id: str,
    attempt: int,
    output_tokens: int,
    at: datetime,
    end_reason: str,
    *,
    implicit_cache_tokens: int = 0,
) -> bool:
    """Make a reserved row owed, with the tokens produced until it finished or was cancelled.

    implicit_cache_tokens: how much of its input was there already; so many move from the computed to the read tokens.
    """
    is_ours = rows.finalise(
        session,
        request_id,
        attempt,
        output_tokens,
        at,
        end_reason,
        implicit_cache_tokens=implicit_cache_tokens,
    )
    if is_ours:
        row = rows.find_usage(session, request_id)
        assert row is not None
        _charge(session, row)
    return is_ours


def charge_unposted(session: Session, now: datetime, limit: int, after: str = "") -> Unit[str]:
    """Charge up to `limit` owed rows, those behind the id `after`, that the ledger does not have: those of a database from
    before it had one. One that has no price, or conflicts with the ledger, is passed over.
    """
    unposted = rows.lock_unposted(session, limit, after)
    if not unposted:
        return Unit(after, is_last=True)
    prices = load_prices(session)
    events: dict[str, list[Charge]] = {}
    refused: dict[str, str] = {}
    for row in unposted:
        try:
            events[row.id] = usage_charges(row, prices)
        except PriceMissing as error:
            refused[row.id] = str(error)
    refused |= post_events(session, events, now)
    for row in unposted:
        row.is_posted = row.id not in refused
    session.flush()
    passed_over = {f"usage {row_id}": why for row_id, why in refused.items()}
    return Unit(unposted[-1].id, is_last=len(unposted) < limit, passed_over=passed_over)


def was_finalised(
    session: Session,
    request_id: str,
    attempt: int,
    output_tokens: int,
    end_reason: str,
    *,
    implicit_cache_tokens: int = 0,
) -> bool:
    """Whether a row is owed already with exactly this: a commit can succeed although its answer was lost."""
    row = rows.find_usage(session, request_id)
    if row is None or row.state is not UsageState.FINAL:
        return False
    recorded = row.attempt, row.output_tokens, row.implicit_cache_tokens, row.end_reason
    return recorded == (attempt, output_tokens, implicit_cache_tokens, end_reason)


def was_voided(session: Session, request_id: str, attempt: int, end_reason: str) -> bool:
    """Whether a row has ended unbilled already for this reason, as above."""
    row = rows.find_usage(session, request_id)
    return row is not None and (row.state, row.attempt, row.end_reason) == (
        UsageState.VOID,
        attempt,
        end_reason,
    )


def void(session: Session, request_id: str, attempt: int, at: datetime, end_reason: str) -> bool:
    """End a reserved row unbilled: it failed before its first token, or whoever ran it died."""
    is_ours = rows.void(session, request_id, attempt, at, end_reason)
    if is_ours:
        row = rows.find_usage(session, request_id)
        assert row is not None
        release(session, [hold_of(session, row)])
    return is_ours


def void_of_dead(session: Session, incarnation: str, at: datetime) -> int:
    """End unbilled what every incarnation but this one left reserved; gives how many rows that were."""
    lock_terms_of(session, rows.list_projects_of_dead(session, incarnation))
    count = rows.void_of_dead(session, incarnation, at)
    release_settled(session)
    return count


def record_write(
    session: Session,
    *,
    cache_id: str,
    project_id: str,
    key_id: str,
    model: str,
    incarnation: str,
    token_count: int,
    at: datetime,
) -> None:
    """Charge a cache's tokens as written, once: a second call for one cache violates the primary key.

    Belongs into the transaction that activates the cache. A rebuild never calls it.
    """
    row = Usage(
        id=f"write:{cache_id}",
        kind=UsageKind.CREATE,
        project_id=project_id,
        key_id=key_id,
        cache_id=cache_id,
        model=model,
        state=UsageState.FINAL,
        attempt=1,
        incarnation=incarnation,
        prompt_tokens=0,
        input_tokens=0,
        cache_read_tokens=0,
        cache_write_tokens=token_count,
        output_tokens=0,
        created_at=at,
        occurred_at=at,
        is_posted=True,
        implicit_cache_tokens=0,
    )
    rows.insert(session, row)
    _charge(session, row)


def _charge(session: Session, row: Usage) -> None:
    """Post what a row owes: at the prices that held when it was accepted, for the hour in which it ended.

    It counts against the limits of the month in which it was held.
    """
    assert row.occurred_at is not None
    prices = prices_at(session, row.project_id, row.model, row.created_at)
    hold = hold_of(session, row)
    month = None if hold is None else hold.month
    post(session, usage_charges(row, prices), row.occurred_at, limit_month=month)
    release(session, [hold])
