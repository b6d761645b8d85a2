"""One cache, from its content in tokens to ACTIVE: written as PENDING, built by a worker, or failed and unbilled."""

import asyncio
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from api.auth import ProjectCaller
from api.patience import Patience
from api.state import ApiState
from caching import lifecycle
from caching.idempotency import Idempotency, create_once, find_made_cache
from core.clock import instant
from core.errors import AppError, Cancelled, DeadlineExceeded, IdempotencyInFlight, Internal
from core.messages import BuildCache, BuiltEvent, FailedEvent
from models.cache import Cache, CacheState, find_cache
from prompting.format import Prefix
from prompting.messages import Message, to_json

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Draft:
    """A cache that has passed every check and is still nothing but memory. created_at: what a template was told is now."""

    display_name: str
    messages: tuple[Message, ...]
    prefix: Prefix
    created_at: datetime
    expire_at: datetime


async def find_made(
    state: ApiState, caller: ProjectCaller, idempotency: Idempotency, patience: Patience
) -> Cache | None:
    """Find the cache that the same create has made before, waiting for one that is being built; None where it is new.

    Raises IdempotencyMismatch, or IdempotencyInFlight where it is still being built when patience ends.
    """
    while True:
        made = await state.pools.read(
            lambda session: find_made_cache(
                session, caller.project_id, idempotency, instant(session, state.clock)
            )
        )
        if made is None or made.state != CacheState.PENDING:
            return made
        try:
            await patience.wait(asyncio.sleep(_POLL_SECONDS))
        except DeadlineExceeded as late:
            raise IdempotencyInFlight(
                "The first request with this Idempotency-Key is still being worked on. Send it again later: it makes no "
                "second cache.",
                retry_after_seconds=1,
            ) from late


async def create_cache(
    state: ApiState,
    caller: ProjectCaller,
    draft: Draft,
    patience: Patience,
    idempotency: Idempotency | None = None,
) -> Cache:
    """Create a cache and wait until it is usable.

    Where the wait ends first, the build is stopped and the cache fails: nobody else knows its name. With an idempotency
    key somebody may come back for it, so the build goes on.
    """
    patience.check()
    cache, is_new = await _write(state, caller, draft, idempotency)
    if not is_new and idempotency is not None:  # the same request came twice at once, and the other was first
        made = await find_made(state, caller, idempotency, patience)
        return made or await create_cache(state, caller, draft, patience, idempotency)
    try:
        await _build(state, cache, patience)
    except AppError as error:
        if idempotency is not None and isinstance(error, DeadlineExceeded | Cancelled):
            raise
        cache = await _give_up(state, caller, cache.id, error.code)
        # It may have become usable, and billed, in the very moment the time was up: then that is the answer.
        if not isinstance(error, DeadlineExceeded) or cache.state is not CacheState.ACTIVE:
            raise
        return cache
    return await state.pools.read(lambda session: _get(find_cache(session, caller.project_id, cache.id)))


async def _write(
    state: ApiState, caller: ProjectCaller, draft: Draft, idempotency: Idempotency | None
) -> tuple[Cache, bool]:
    """Write the cache as PENDING; False where a request with the same idempotency key has written it already."""

    def create(session: Session) -> Cache:
        return lifecycle.create(
            session,
            project_id=caller.project_id,
            key_id=caller.key_id,
            model=state.served_model.name,
            fingerprint=state.served_model.fingerprint,
            display_name=draft.display_name,
            messages=to_json(draft.messages),
            prefix_text=draft.prefix.text,
            token_ids=draft.prefix.token_ids,
            expire_at=draft.expire_at,
            incarnation=state.transport.incarnation,
            now=draft.created_at,
            max_caches=state.settings.max_caches_per_project,
            max_cached_tokens=state.settings.max_cached_tokens_per_project,
        )

    def write(session: Session) -> tuple[Cache, bool]:
        if idempotency is None:
            return create(session), True
        return create_once(session, caller.project_id, idempotency, draft.created_at, create)

    return await state.pools.write(write)


async def _build(state: ApiState, pending: Cache, patience: Patience) -> None:
    async with state.transport.open(pending.id) as channel:
        state.transport.send(BuildCache(pending.id, pending.fencing_token))
        event = await patience.wait(channel.next())
    if isinstance(event, FailedEvent):
        raise event.error
    if not isinstance(event, BuiltEvent):
        raise Internal("Text came where a build was awaited.")


async def _give_up(state: ApiState, caller: ProjectCaller, cache_id: str, reason: str) -> Cache:
    """Fail the cache, unless it is ACTIVE or FAILED already, and stop the build. Gives the cache as it stands then."""

    def fail(session: Session) -> Cache:
        lifecycle.fail(session, state.clock, cache_id, reason)
        return _get(find_cache(session, caller.project_id, cache_id))

    try:
        return await state.pools.write(fail)
    finally:
        # After the row has ended, so that a build which is only about to start finds that, and starts no more.
        state.transport.cancel(cache_id)


def _get(cache: Cache | None) -> Cache:
    assert cache is not None, "a row that was written is never removed"
    return cache
