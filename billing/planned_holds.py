"""What is to be held for each thing that is not settled: a request that runs, a cache that is built, one that lives.

It follows from their rows and the prices alone, so it can be told again at any time.
"""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from billing.bounds import most_of_request, most_of_storage, most_of_write, storage_to_come
from billing.months import month_of
from billing.prices import load_prices
from billing.timelines import Prices
from models.cache import Cache, list_pending
from models.hold import Hold
from models.storage_segment import StorageSegment, list_unposted
from models.usage import Usage, list_reserved


def holds_of_request(row: Usage, prices: Prices) -> list[Hold]:
    return _holds(row, {row.id: (month_of(row.created_at), most_of_request(row, prices))}, None)


def holds_of_build(cache: Cache, prices: Prices) -> list[Hold]:
    write = {f"write:{cache.id}": (month_of(cache.created_at), most_of_write(cache, prices))}
    return _holds(cache, write | _storage(cache.id, most_of_storage(cache, prices)), cache.id)


def holds_of_segment(segment: StorageSegment, prices: Prices) -> list[Hold]:
    return _holds(segment, _storage(segment.cache_id, storage_to_come(segment, prices)), segment.cache_id)


def all_that_is_open(session: Session, project_id: str) -> list[Hold]:
    """For all that runs and lives in a project that never held anything. It must be locked alone."""
    prices = load_prices(session)
    holds: list[Hold] = []
    for row in list_reserved(session, project_id):
        holds += holds_of_request(row, prices)
    for cache in list_pending(session, project_id):
        holds += holds_of_build(cache, prices)
    for segment in list_unposted(session, project_id):
        holds += holds_of_segment(segment, prices)
    return holds


def _storage(cache_id: str, amounts: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    return {f"storage:{cache_id}:{month}": (month, amount) for month, amount in sorted(amounts.items())}


def _holds(
    owner: Usage | Cache | StorageSegment, amounts: Mapping[str, tuple[str, int]], cache_id: str | None
) -> list[Hold]:
    """What costs nothing is not held."""
    return [
        Hold(
            id=hold_id,
            project_id=owner.project_id,
            key_id=owner.key_id,
            cache_id=cache_id,
            month=month,
            amount_nano_usd=amount,
        )
        for hold_id, (month, amount) in amounts.items()
        if amount
    ]
