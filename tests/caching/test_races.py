"""Two steps at once, by real threads on a real database file: one of them wins whole, whichever it is."""

from datetime import timedelta

import pytest

from caching.sweeping import sweep
from core.errors import CacheExpired, CacheNotFound, CacheQuota
from models.cache import CacheState
from tests.caching.at_once import at_once
from tests.caching.scene import Scene

ROUNDS = range(8)


@pytest.mark.parametrize("_", ROUNDS)
def test_extend_against_sweep_at_the_expiry(scene: Scene, _: int) -> None:
    """At the expiry itself both must agree that it has passed, whoever comes first."""
    cache = scene.active(ttl_seconds=10)
    end = scene.clock.advance(10)

    def run_sweep() -> list[str]:
        with scene.database.write() as session:
            return sweep(session, scene.clock, 10)

    swept, extended = at_once(run_sweep, lambda: scene.extend(cache, ttl_seconds=60))
    assert isinstance(extended, CacheExpired)
    # A database that skips locked rows may have left it to the next sweep.
    assert (swept or run_sweep()) == [cache.id]
    assert scene.segment(cache)[1] == scene.row(cache).ended_at == end


@pytest.mark.parametrize("_", ROUNDS)
def test_extend_against_sweep_while_the_expiry_passes(scene: Scene, _: int) -> None:
    cache = scene.active(ttl_seconds=10)
    scene.clock.advance(9.999)
    planned = scene.row(cache).expire_at

    def run_sweep() -> list[str]:
        scene.clock.advance(0.002)
        with scene.database.write() as session:
            return sweep(session, scene.clock, 10)

    swept, extended = at_once(run_sweep, lambda: scene.extend(cache, ttl_seconds=60))
    row = scene.row(cache)
    if swept:
        assert isinstance(extended, CacheExpired)
        assert (row.state, row.ended_at) == (CacheState.EXPIRED, planned)
        assert scene.segment(cache)[1] == planned
    elif isinstance(extended, CacheExpired):  # it came after the expiry, the sweep had looked before
        assert (row.state, row.expire_at, scene.segment(cache)[1]) == (CacheState.ACTIVE, planned, planned)
    else:
        assert row.state == CacheState.ACTIVE
        assert scene.segment(cache)[1] == row.expire_at > planned + timedelta(seconds=50)


@pytest.mark.parametrize("_", ROUNDS)
def test_activate_against_fail(scene: Scene, _: int) -> None:
    cache = scene.create()
    activated, failed = at_once(lambda: scene.activate(cache), lambda: scene.fail(cache))
    assert activated is not failed
    is_billed = (scene.count("usage"), scene.count("storage_segments")) == (1, 1)
    assert is_billed is activated
    assert scene.state(cache) == (CacheState.ACTIVE if activated else CacheState.FAILED)
    assert (None in scene.content(cache)) is failed


@pytest.mark.parametrize("_", ROUNDS)
def test_delete_against_activate(scene: Scene, _: int) -> None:
    cache = scene.create()
    activated, deleted = at_once(lambda: scene.activate(cache), lambda: scene.delete(cache))
    assert activated is True
    assert (scene.count("usage"), scene.count("storage_segments")) == (1, 1)
    if deleted is None:
        assert scene.state(cache) == CacheState.DELETED
        assert scene.segment(cache)[1] == scene.row(cache).ended_at
    else:  # it came before the cache was usable
        assert type(deleted) is CacheNotFound
        assert scene.state(cache) == CacheState.ACTIVE


@pytest.mark.parametrize("_", ROUNDS)
def test_a_lease_against_delete(scene: Scene, _: int) -> None:
    cache = scene.active()
    leased, deleted = at_once(lambda: scene.acquire(cache), lambda: scene.delete(cache))
    assert deleted is None
    assert scene.count("usage") == (2 if leased is None else 1)
    assert leased is None or isinstance(leased, CacheNotFound)
    assert scene.state(cache) == CacheState.DELETED


@pytest.mark.parametrize("_", ROUNDS)
def test_extend_against_delete(scene: Scene, _: int) -> None:
    cache = scene.active(ttl_seconds=60)
    now = scene.clock.advance(5)
    extended, deleted = at_once(lambda: scene.extend(cache, ttl_seconds=600), lambda: scene.delete(cache))
    assert deleted is None
    assert isinstance(extended, CacheNotFound) or scene.row(cache).expire_at == now + timedelta(seconds=600)
    assert scene.segment(cache)[1] == scene.row(cache).ended_at == now


def test_twenty_creates_at_once_stop_at_the_quota(scene: Scene) -> None:
    outcomes = at_once(*[lambda: scene.create(max_caches=7)] * 20)
    refused = [each for each in outcomes if isinstance(each, CacheQuota)]
    assert (len(outcomes) - len(refused), len(refused)) == (7, 13)
    assert scene.count("caches") == 7


def test_twenty_deletes_at_once_delete_once(scene: Scene) -> None:
    cache = scene.active()
    outcomes = at_once(*[lambda: scene.delete(cache)] * 20)
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, CacheNotFound) for outcome in outcomes) == 19


def test_ten_builds_of_one_cache_bill_once(scene: Scene) -> None:
    cache = scene.create()
    outcomes = at_once(*[lambda: scene.activate(cache)] * 10)
    assert sorted(outcomes, key=bool) == [False] * 9 + [True]
    assert (scene.count("usage"), scene.count("storage_segments")) == (1, 1)
