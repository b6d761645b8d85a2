import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from billing import usage
from core.errors import CacheDeleted, CacheExpired, CacheModelMismatch, CacheNotFound
from models.usage import UsageState, find_usage
from tests.caching.scene import Scene
from tests.fakes.clock import START
from tests.models.rows import add_customer


def test_a_lease_is_the_reserved_usage_of_its_request(scene: Scene) -> None:
    cache = scene.active()
    now = scene.clock.advance(5)
    scene.acquire(cache)
    with scene.database.read() as session:
        row = find_usage(session, "gen_1")
        assert row is not None
        assert (row.state, row.attempt, row.created_at) == (UsageState.RESERVED, 1, now)
        assert (row.cache_id, row.incarnation) == (cache.id, "inc_1")
        assert (cache.model, row.model) == ("tiny", "renamed")  # a name is not what binds them
        assert (row.prompt_tokens, row.input_tokens, row.cache_read_tokens) == (107, 7, 100)


def test_a_request_without_a_cache_reserves_too(scene: Scene) -> None:
    scene.acquire(None)
    with scene.database.read() as session:
        row = find_usage(session, "gen_1")
        assert row is not None
        assert (row.cache_id, row.input_tokens, row.cache_read_tokens) == (None, 7, 0)


def test_a_lease_reads_no_content(scene: Scene) -> None:
    cache = scene.active()
    statements: list[str] = []
    event.listen(scene.database._engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    scene.acquire(cache)
    assert any("FROM caches" in statement for statement in statements)
    for column in ("token_ids", "prefix_text", "messages"):
        assert not any(column in statement for statement in statements)


def test_an_expired_cache_leases_nothing(scene: Scene) -> None:
    cache = scene.active(ttl_seconds=10)
    scene.clock.advance(10)
    with pytest.raises(CacheExpired):
        scene.acquire(cache)
    assert scene.count("usage") == 1  # its own write


def test_a_cache_that_ended_or_was_never_built_leases_nothing(scene: Scene) -> None:
    cache = scene.active()
    scene.delete(cache)
    with pytest.raises(CacheDeleted):
        scene.acquire(cache)
    with pytest.raises(CacheNotFound):
        scene.acquire(scene.create())
    assert scene.count("usage") == 1


def test_another_projects_cache_leases_nothing(scene: Scene) -> None:
    with scene.database.write() as session:
        other = add_customer(session, "two")
    cache = scene.active(customer=other)
    with pytest.raises(CacheNotFound) as caught:
        scene.acquire(cache)
    assert type(caught.value) is CacheNotFound
    assert scene.count("usage") == 1


def test_a_cache_of_another_model_leases_nothing(scene: Scene) -> None:
    with pytest.raises(CacheModelMismatch, match="models/tiny"):
        scene.acquire(scene.active(), fingerprint="aa:cc")
    assert scene.count("usage") == 1


def test_a_request_leases_once(scene: Scene) -> None:
    cache = scene.active()
    scene.acquire(cache)
    with pytest.raises(IntegrityError):
        scene.acquire(cache)


def test_a_running_request_is_billed_after_its_cache_is_gone(scene: Scene) -> None:
    cache = scene.active()
    scene.acquire(cache)
    scene.delete(cache)
    with scene.database.write() as session:
        assert usage.finalise(session, "gen_1", 1, 5, scene.clock.advance(1), "STOP")


def test_a_clock_that_was_set_back_leases_no_earlier_than_the_last_event(scene: Scene) -> None:
    cache = scene.active()
    scene.clock.advance(-3600)
    scene.acquire(cache)
    with scene.database.read() as session:
        row = find_usage(session, "gen_1")
        assert row is not None
        assert row.created_at == START
