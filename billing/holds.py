"""Holding what may come to be owed, and letting go of it, in the write unit of what it is for.

A hold is taken with the reservation and is never less than what is charged; it goes in the unit that settles. So spent and
held together never pass a hard limit, whatever runs at the same time, and no hold outlives its reason.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from billing.counters import move_held
from billing.planned_holds import all_that_is_open, holds_of_build, holds_of_request, holds_of_segment
from billing.prices import load_prices, prices_at
from billing.terms import Terms, forget, lock_terms, lock_terms_of
from billing.timelines import Prices
from core.errors import PriceMissing
from models.cache import Cache
from models.hold import (
    Hold,
    find_hold,
    list_holds_of_caches,
    list_holds_of_settled,
    remove_holds,
    replace_holds,
)
from models.storage_segment import StorageSegment
from models.usage import Usage

log = logging.getLogger(__name__)


def hold_request(session: Session, row: Usage) -> None:
    """Hold what a request can come to that is about to be reserved; raises SpendLimit or CreditExhausted where it may not."""
    terms = _holding(session, row.project_id)
    if terms is not None:
        prices = prices_at(session, row.project_id, row.model, row.created_at)
        _replace(session, terms, row.key_id, [], holds_of_request(row, prices), refused_at=row.created_at)


def hold_of(session: Session, row: Usage) -> Hold | None:
    """What is held for a usage row, or for the cache that it writes; it stays until the unit ends."""
    return None if _holding(session, row.project_id) is None else find_hold(session, row.id)


def hold_cache(session: Session, cache: Cache) -> None:
    """Hold the writing of a cache that is to be built, and its whole planned life; raises as `hold_request`."""
    terms = _holding(session, cache.project_id)
    if terms is not None:
        wanted = holds_of_build(cache, load_prices(session))
        _replace(session, terms, cache.key_id, [], wanted, refused_at=cache.created_at)


def follow(
    session: Session,
    segments: Sequence[StorageSegment],
    *,
    prices: Prices | None = None,
    refused_at: datetime | None = None,
) -> None:
    """Let what is held for caches be what is planned of their storage and not posted yet: a promise that is owed anyhow.

    refused_at: the instant at which somebody asks for a longer life; then it raises where that may not be.
    """
    lock_terms_of(session, (segment.project_id for segment in segments))
    limited = [segment for segment in segments if _holding(session, segment.project_id) is not None]
    if not limited:
        return
    prices = prices or load_prices(session)
    wanted: dict[str, list[Hold]] = {}
    for segment in limited:
        try:
            wanted[segment.cache_id] = holds_of_segment(segment, prices)
        except PriceMissing as error:
            if refused_at is not None:
                raise
            # Whatever has become of the prices, a cache can end, and others are posted.
            log.error("what is held for the storage of cache %s stays: %s", segment.cache_id, error)  # noqa: TRY400
    held: dict[str | None, list[Hold]] = {}
    for hold in list_holds_of_caches(session, list(wanted)):
        held.setdefault(hold.cache_id, []).append(hold)
    by_owner: dict[tuple[str, str], list[str]] = {}
    for segment in limited:
        if segment.cache_id in wanted:
            by_owner.setdefault((segment.project_id, segment.key_id), []).append(segment.cache_id)
    for (project_id, key_id), cache_ids in sorted(by_owner.items()):
        before = [hold for cache_id in cache_ids for hold in held.get(cache_id, ())]
        after = [hold for cache_id in cache_ids for hold in wanted[cache_id]]
        terms = _holding(session, project_id)
        assert terms is not None, "where nothing limits, nothing is held"
        _replace(session, terms, key_id, before, after, refused_at=refused_at)


def release(session: Session, holds: Iterable[Hold | None]) -> None:
    """Let go of holds: what they were for is settled."""
    by_owner: dict[tuple[str, str], list[Hold]] = {}
    for hold in holds:
        if hold is not None:
            by_owner.setdefault((hold.project_id, hold.key_id), []).append(hold)
    lock_terms_of(session, (project_id for project_id, _ in by_owner))
    for (project_id, key_id), held in sorted(by_owner.items()):
        terms = _holding(session, project_id)
        assert terms is not None, "where nothing limits, nothing is held"
        _replace(session, terms, key_id, held, [], refused_at=None)


def release_cache(session: Session, cache: Cache) -> None:
    """Let go of all that is held for a cache that is not to be."""
    if _holding(session, cache.project_id) is not None:
        release(session, list_holds_of_caches(session, [cache.id]))


def release_settled(session: Session) -> None:
    """Let go of what is held for requests that were ended all at once."""
    release(session, list_holds_of_settled(session))


def hold_what_is_open(session: Session, project_id: str, before: Terms | None) -> None:
    """The terms hold from now on: unless they did before, take up what runs and lives. Its project must be locked alone."""
    forget(session, project_id)
    if before is None or not before.is_holding:
        replace_holds(session, [], all_that_is_open(session, project_id))


def let_go_if_free(session: Session, project_id: str) -> None:
    """Where nothing limits a project any more, nothing is held."""
    forget(session, project_id)
    if _holding(session, project_id) is None:
        remove_holds(session, project_id)


def _holding(session: Session, project_id: str) -> Terms | None:
    """The terms of a project in which something is held; None of any other."""
    terms = lock_terms(session, project_id)
    return terms if terms is not None and terms.is_holding else None


def _replace(
    session: Session,
    terms: Terms,
    key_id: str,
    before: Sequence[Hold],
    after: Sequence[Hold],
    *,
    refused_at: datetime | None,
) -> None:
    """Hold the one instead of the other. refused_at: when it was asked for, if it may be refused; None: it may not."""
    same = {_facts(hold) for hold in before} & {_facts(hold) for hold in after}
    before = [hold for hold in before if _facts(hold) not in same]
    after = [hold for hold in after if _facts(hold) not in same]
    changes: Counter[str] = Counter()
    for hold in after:
        changes[hold.month] += hold.amount_nano_usd
    for hold in before:
        changes[hold.month] -= hold.amount_nano_usd
    move_held(session, terms, key_id, changes, refused_at)
    replace_holds(session, before, after)


def _facts(hold: Hold) -> tuple[str, str, int]:
    return hold.id, hold.month, hold.amount_nano_usd
