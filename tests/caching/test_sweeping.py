from datetime import timedelta

import pytest

from caching.sweeping import sweep
from core.errors import CacheExpired
from models.cache import CacheEndReason, CacheState
from tests.caching.scene import Scene
from tests.fakes.clock import START


def run(scene: Scene, limit: int = 100) -> list[str]:
    with scene.database.write() as session:
        return sweep(session, scene.clock, limit)


def test_an_expired_cache_ends_when_it_was_to_end(scene: Scene) -> None:
    cache = scene.active(ttl_seconds=10)
    late = scene.clock.advance(7200)
    assert run(scene) == [cache.id]
    row = scene.row(cache)
    assert (row.state, row.end_reason) == (CacheState.EXPIRED, CacheEndReason.EXPIRED)
    assert (row.ended_at, row.updated_at) == (START + timedelta(seconds=10), late)
    assert scene.content(cache) == (None, None, None)


def test_sweeping_late_costs_nothing_and_tells_the_same(scene: Scene) -> None:
    cache = scene.active(ttl_seconds=10)
    scene.clock.advance(7200)
    before = scene.segment(cache)
    told = []
    for _ in range(2):
        with pytest.raises(CacheExpired) as caught:
            scene.get(cache)
        told.append((caught.value.message, caught.value.metadata))
        run(scene)
    assert told[0] == told[1]
    assert scene.segment(cache) == before == (START, START + timedelta(seconds=10))


def test_live_and_ended_caches_are_left_alone(scene: Scene) -> None:
    scene.active()
    scene.create()
    deleted = scene.active(ttl_seconds=10)
    scene.delete(deleted)
    scene.fail(scene.create(ttl_seconds=10))
    scene.clock.advance(20)
    assert run(scene) == []
    assert scene.state(deleted) == CacheState.DELETED


def test_a_build_whose_expiry_has_passed_fails_unbilled(scene: Scene) -> None:
    cache = scene.create(ttl_seconds=10)
    scene.clock.advance(10)
    assert run(scene) == [cache.id]
    assert (scene.row(cache).state, scene.row(cache).failure) == (CacheState.FAILED, "cache_expired")
    assert scene.content(cache) == (None, None, None)
    assert not scene.activate(cache)
    assert (scene.count("usage"), scene.count("storage_segments")) == (0, 0)


def test_a_sweep_takes_so_many_and_the_next_the_rest(scene: Scene) -> None:
    caches = [scene.active(ttl_seconds=10 + index) for index in range(3)]
    scene.clock.advance(60)
    assert run(scene, 2) == [caches[0].id, caches[1].id]
    assert run(scene, 2) == [caches[2].id]
    assert run(scene, 2) == []


def test_a_cache_that_was_extended_is_not_due(scene: Scene) -> None:
    cache = scene.active(ttl_seconds=10)
    scene.extend(cache, ttl_seconds=60)
    scene.clock.advance(30)
    assert run(scene) == []
    scene.clock.advance(30)
    assert run(scene) == [cache.id]
