"""cachedContents: create, get, list, patch, delete.

A cache that was made through an alias shows the served model's own name: it is what a later request is answered by, and
either name may be used with it.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from api.auth import CachesCaller
from api.bodies import read_json
from api.builds import create_cache, find_made
from api.dialects.gemini import page_tokens
from api.dialects.gemini.cache_names import read_cache_id
from api.dialects.gemini.drafts import read_draft
from api.dialects.gemini.page_tokens import Position
from api.dialects.gemini.query import read_page_size, read_query
from api.dialects.gemini.rejections import parse
from api.dialects.gemini.requests import CachedContent
from api.dialects.gemini.responses import cache_resource, ok
from api.dialects.gemini.times import parse_expiry
from api.idempotency import read_idempotency
from api.page_tokens import PURPOSE
from api.patience import Patience
from api.state import ApiState, api_state
from caching import lifecycle
from caching.status import CacheStatus, status_of
from core.clock import instant
from core.errors import InvalidArgument, Unavailable
from core.messages import DropCache
from models.cache import Cache, find_cache, list_live_caches

router = APIRouter()
log = logging.getLogger(__name__)

_ROOT = "cached_content"
_DEFAULT_PAGE = 50


@router.post("/cachedContents")
async def create(request: Request, caller: CachesCaller) -> Response:
    """Create; with an Idempotency-Key, a create that was made before is answered as it was then."""
    read_query(request)
    state = api_state(request)
    body = await read_json(request)
    idempotency = await state.pools.compute(lambda: read_idempotency(request, body))
    async with Patience.of(request, state.settings.request_timeout_seconds) as patience:
        cache = None
        if idempotency is not None:
            cache = await find_made(state, caller, idempotency, patience)
        if cache is None:
            wire = parse(CachedContent, body, _ROOT)
            draft = await read_draft(state, request, caller.arrived_at, wire, _ROOT)
            cache = await create_cache(state, caller, draft, patience, idempotency)
    (status,) = await state.pools.read(
        lambda session: status_of(session, [cache], instant(session, state.clock))
    )
    return ok(cache_resource(status))


@router.get("/cachedContents")
async def list_caches(request: Request, caller: CachesCaller) -> Response:
    query = read_query(request, "page_size", "page_token")
    size = read_page_size(query, _DEFAULT_PAGE)
    state = api_state(request)
    key = state.secret.derive(PURPOSE)
    token = query.get("page_token")
    position = page_tokens.decode(key, caller.project_id, token) if token else None

    def read(session: Session) -> tuple[Sequence[Cache], list[CacheStatus]]:
        now = instant(session, state.clock)
        caches = _read_page(session, now, caller.project_id, size, position)
        return caches, status_of(session, caches[:size], now)

    caches, page = await state.pools.read(read)
    body: dict[str, object] = {}
    if page:
        body["cachedContents"] = [cache_resource(status) for status in page]
    if len(caches) > size:
        last = caches[size - 1]
        onward = Position((last.created_at, last.id), caches[size].id)
        body["nextPageToken"] = page_tokens.encode(key, caller.project_id, onward)
    return ok(body)


@router.get("/cachedContents/{cache_id}")
async def get(request: Request, caller: CachesCaller, cache_id: str) -> Response:
    read_query(request)
    state = api_state(request)
    cache_id = read_cache_id(cache_id)

    def read(session: Session) -> list[CacheStatus]:
        now = instant(session, state.clock)
        return status_of(session, [lifecycle.get(session, caller.project_id, cache_id, now)], now)

    (status,) = await state.pools.read(read)
    return ok(cache_resource(status))


@router.patch("/cachedContents/{cache_id}")
async def patch(request: Request, caller: CachesCaller, cache_id: str) -> Response:
    query = read_query(request, "update_mask")
    cache_id = read_cache_id(cache_id)
    state = api_state(request)
    wire = parse(CachedContent, await read_json(request), _ROOT)

    def extend(session: Session) -> list[CacheStatus]:
        """Everything that can be wrong is told only to those who may see the cache."""
        now = instant(session, state.clock)
        _check_unchanged(lifecycle.get(session, caller.project_id, cache_id, now), wire, state)
        expiry = _masked_expiry(state, now, wire, query.get("update_mask", ""))
        cache = lifecycle.extend(
            session,
            state.clock,
            caller.project_id,
            cache_id,
            expire_at=expiry if isinstance(expiry, datetime) else None,
            ttl_seconds=expiry.total_seconds() if isinstance(expiry, timedelta) else None,
            max_ttl_seconds=state.settings.max_ttl_seconds,
        )
        return status_of(session, [cache], now)

    (status,) = await state.pools.write(extend)
    return ok(cache_resource(status))


@router.delete("/cachedContents/{cache_id}")
async def delete(request: Request, caller: CachesCaller, cache_id: str) -> Response:
    read_query(request)
    cache_id = read_cache_id(cache_id)
    state = api_state(request)
    is_done = False

    def end(session: Session) -> None:
        nonlocal is_done
        lifecycle.delete(session, state.clock, caller.project_id, cache_id)
        is_done = True

    try:
        await state.pools.write(end)
    finally:
        # Also where it is not known whether that was committed: sent again, the deletion would find nothing to delete. If the
        # cache does live, its KV is made again for who asks.
        if is_done:
            _drop(state, cache_id)
    return ok({})


def _drop(state: ApiState, cache_id: str) -> None:
    try:
        state.transport.send(DropCache(cache_id))
    except Unavailable:
        # Deleted it is, and nobody can use it. An engine that is not there holds no KV when it comes back.
        log.warning("no engine was told of a deletion", extra={"cache_id": cache_id})


def _read_page(
    session: Session, now: datetime, project_id: str, size: int, position: Position | None
) -> Sequence[Cache]:
    """One more than a page, so that it is known whether another follows."""
    caches = list_live_caches(session, project_id, now, size + 1, position.after if position else None)
    if not caches and position is not None:
        ended = find_cache(session, project_id, position.next_id)
        return [] if ended is None else [ended]
    return caches


def _check_unchanged(cache: Cache, wire: CachedContent, state: ApiState) -> None:
    """A body may repeat what cannot be changed, as a client does that sends back a whole resource; not alter it."""
    altered = [
        name
        for name, is_altered in (
            ("contents", wire.contents is not None),
            ("system_instruction", wire.system_instruction is not None),
            ("display_name", wire.display_name not in {None, cache.display_name}),
            (
                "model",
                wire.model is not None
                and wire.model.removeprefix("models/") != cache.model
                and not state.served_model.resolve(wire.model),
            ),
        )
        if is_altered
    ]
    if altered:
        raise _immutable(altered[0])


def _masked_expiry(state: ApiState, now: datetime, wire: CachedContent, mask: str) -> datetime | timedelta:
    paths = {_mask_path(path.strip()) for path in mask.split(",") if path.strip()}
    ttl, expire_time = wire.ttl, wire.expire_time
    if paths and "*" not in paths:
        missing = [path for path in sorted(paths) if getattr(wire, path) is None]
        if missing:
            raise InvalidArgument(
                f"update_mask names '{missing[0]}', which the body lacks.", field=f"{_ROOT}.{missing[0]}"
            )
        ttl = ttl if "ttl" in paths else None
        expire_time = expire_time if "expire_time" in paths else None
    expiry = parse_expiry(ttl, expire_time, now, timedelta(seconds=state.settings.max_ttl_seconds))
    if expiry is None:
        raise InvalidArgument("There is nothing to update: set ttl or expireTime.", field=_ROOT)
    return expiry


def _mask_path(path: str) -> str:
    if path in {"ttl", "expire_time", "*"}:
        return path
    if path == "expireTime":
        return "expire_time"
    raise _immutable(path[:100])


def _immutable(path: str) -> InvalidArgument:
    return InvalidArgument(
        f"'{path}' cannot be updated: only ttl and expireTime can.", field=f"{_ROOT}.{path}"
    )
