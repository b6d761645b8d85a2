"""Where a cache's KV is said to lie, and how many hits it is said to have had."""

import pytest

from billing import usage
from caching import lifecycle
from caching.status import status_of
from caching.sweeping import sweep
from models.cache import Cache, CacheState
from models.placement import Holder, Tier
from tests.caching.scene import Scene


def rebuilt(scene: Scene, cache: Cache, holder: Holder) -> bool:
    with scene.database.write() as session:
        return lifecycle.rebuilt(session, cache.id, holder)


def test_kv_lies_where_it_was_built_until_that_process_is_gone(scene: Scene) -> None:
    pending, active = scene.create(), scene.active()
    assert scene.status(active, pending) == [(Tier.RAM, 0), (None, 0)]
    with scene.database.write() as session:
        lifecycle.recover(session, scene.clock, "inc_2")
    assert scene.status(active) == [(None, 0)]
    assert rebuilt(scene, active, Holder("inc_2", Tier.GPU))
    assert scene.status(active) == [(Tier.GPU, 0)]
    assert rebuilt(scene, active, Holder("inc_3", Tier.RAM))
    assert scene.status(active) == [(Tier.GPU, 0)], "the fastest of two"


@pytest.mark.parametrize("ends_by", ["delete", "expire", "retire"])
def test_kv_of_an_ended_cache_lies_nowhere_and_does_not_come_back(scene: Scene, ends_by: str) -> None:
    cache = scene.active(ttl_seconds=10)
    if ends_by == "delete":
        scene.delete(cache)
    elif ends_by == "expire":
        scene.clock.advance(10)
        with scene.database.write() as session:
            assert sweep(session, scene.clock, 10) == [cache.id]
    else:
        with scene.database.write() as session:
            assert lifecycle.retire(session, scene.clock, "cc:dd") == [cache.id]
    assert not rebuilt(scene, cache, Holder("inc_1", Tier.RAM))
    assert scene.count("placements") == 0


def test_a_hit_counts_once_it_is_owed(scene: Scene) -> None:
    cache, other = scene.active(), scene.active()
    for number in range(4):
        scene.acquire(cache, f"gen_{number}")
    scene.acquire(None, "gen_uncached")
    with scene.database.write() as session:
        at = scene.clock.now()
        usage.finalise(session, "gen_0", 1, 5, at, "STOP")
        usage.finalise(session, "gen_1", 1, 0, at, "STOP", implicit_cache_tokens=1)
        usage.void(session, "gen_2", 1, at, "CANCELLED")
        usage.finalise(session, "gen_uncached", 1, 5, at, "STOP", implicit_cache_tokens=1)
    assert scene.status(other, cache) == [(Tier.RAM, 0), (Tier.RAM, 2)]


def test_it_has_expired_from_its_expiry_on_swept_or_not(scene: Scene) -> None:
    cache = scene.active(ttl_seconds=10)
    states = []
    for _ in range(2):
        with scene.database.read() as session:
            states += [each.state for each in status_of(session, [scene.row(cache)], scene.clock.now())]
        scene.clock.advance(10)
    assert states == [CacheState.ACTIVE, CacheState.EXPIRED]
    assert scene.state(cache) == CacheState.ACTIVE
