"""A lease lets one request use one cache until the request ends: its reserved usage row.

The row is settled by whoever ends the request (`billing.usage`); a cache that expires or is deleted meanwhile stays
readable to the requests that hold a lease, and to no new one.
"""

from sqlalchemy.orm import Session

from billing import usage
from billing.meters import GENERATE_METERS
from billing.prices import require_prices
from caching.lifecycle import usable
from core.clock import Clock, instant
from core.errors import CacheModelMismatch
from models.cache import Cache, lock_cache_shared


def acquire(
    session: Session,
    clock: Clock,
    *,
    project_id: str,
    key_id: str,
    cache_id: str | None,
    model: str,
    fingerprint: str,
    request_id: str,
    prompt_tokens: int,
    cache_tokens: int,
    most_output_tokens: int,
    incarnation: str,
) -> None:
    """Reserve the usage of a request and, with a cache_id, lease that cache to it; raises as `lifecycle.get` does.

    most_output_tokens: of all its candidates. Raises PriceMissing where something that it may come to owe has no price, and
    SpendLimit or CreditExhausted where there is no room for all that it may come to.
    """
    cache = None if cache_id is None else lock_cache_shared(session, project_id, cache_id)
    now = instant(session, clock, not_before=None if cache is None else cache.updated_at)
    if cache_id is not None:
        cache = usable(cache, cache_id, now)
        _check_model(cache, model, fingerprint)
        assert cache_tokens == cache.token_count, "a hit reads the whole cache"
    require_prices(session, project_id, model, GENERATE_METERS, now)
    usage.reserve(
        session,
        request_id=request_id,
        attempt=1,
        project_id=project_id,
        key_id=key_id,
        cache_id=cache_id,
        model=model,
        incarnation=incarnation,
        prompt_tokens=prompt_tokens,
        cache_read_tokens=cache_tokens,
        most_output_tokens=most_output_tokens,
        at=now,
    )


def _check_model(cache: Cache, model: str, fingerprint: str) -> None:
    """A cache belongs to a fingerprint; the name that its model was served under may have changed."""
    if cache.fingerprint != fingerprint:
        raise CacheModelMismatch(
            f"The cache was made for models/{cache.model}, not for models/{model}. "
            "Ask the model it was made for, or make it again for this one.",
            field="model",
            metadata={"model": cache.model},
        )
