"""How many caches a project may have at once, and how many tokens in those of one model; more is refused, nothing is ended."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy.orm import Session

from core.clock import format_instant
from core.errors import CacheQuota
from models.cache import count_live, list_live_sizes, sum_live_tokens
from models.token_quota import find_max_cached_tokens


def check_quotas(
    session: Session,
    project_id: str,
    model: str,
    token_count: int,
    now: datetime,
    *,
    max_caches: int,
    max_cached_tokens: int | None,
) -> None:
    """Raise CacheQuota if one more cache of so many tokens is too much. The caller holds the project's lock.

    max_cached_tokens: the server's, None for no bound; a project's own quota takes its place.
    """
    live_count = count_live(session, project_id, now)
    if live_count >= max_caches:
        each = [(expire_at, 1) for expire_at, _ in list_live_sizes(session, project_id, now)]
        raise _refusal(
            f"The project has {live_count} caches and may have {max_caches}.",
            _room_at(each, live_count + 1 - max_caches),
            now,
            quota="caches_per_project",
            limit=str(max_caches),
            in_use=str(live_count),
            requested="1",
        )
    own = find_max_cached_tokens(session, project_id, model)
    limit = max_cached_tokens if own is None else own
    if limit is None:
        return
    in_use = sum_live_tokens(session, project_id, model, now)
    if in_use + token_count > limit:
        raise _refusal(
            f"TotalCachedContentStorageTokensPerModel limit exceeded for model {model}: limit={limit}, "
            f"requested={token_count}, in use={in_use}.",
            _room_at(list_live_sizes(session, project_id, now, model), in_use + token_count - limit),
            now,
            quota="cached_tokens_per_project_and_model",
            limit=str(limit),
            in_use=str(in_use),
            requested=str(token_count),
            model=model,
        )


def _room_at(lives: Iterable[tuple[datetime, int]], missing: int) -> datetime | None:
    """When so much will have expired, if nothing else changes; None where even all would be too little."""
    for expire_at, size in sorted(lives):
        missing -= size
        if missing <= 0:
            return expire_at
    return None


def _refusal(message: str, room_at: datetime | None, now: datetime, **metadata: str) -> CacheQuota:
    if room_at is None:
        return CacheQuota(
            f"{message} This one does not fit even alone: ask for less, or have the quota raised.",
            metadata=metadata,
        )
    return CacheQuota(
        f"{message} Delete a cache, or wait: there will be room at {format_instant(room_at)}.",
        metadata=metadata,
        retry_after_seconds=(room_at - now).total_seconds(),
    )
