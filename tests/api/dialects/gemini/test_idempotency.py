"""A create that is sent again under its own key makes, and costs, nothing more."""

from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from core.errors import ArenaFull
from core.messages import BuildCache
from models.cache import Cache, CacheState
from tests.api.harness import MODEL, Server, on_each_database, user, words
from tests.fakes.worker import Script

pytestmark = on_each_database

ROUTE = "/v1/cachedContents"


def create(http: httpx.Client, key: str = "key-1", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "contents": [user(words(100))]} | fields
    return http.post(ROUTE, json=body, headers={"Idempotency-Key": key})


def caches(server: Server) -> int:
    with server.state.database.read() as session:
        query = select(func.count()).select_from(Cache).where(Cache.project_id == server.project_id)
        return session.scalars(query).one()


def state(server: Server) -> CacheState:
    with server.state.database.read() as session:
        return session.scalars(select(Cache.state).where(Cache.project_id == server.project_id)).one()


def test_the_second_is_answered_as_the_first_and_nothing_is_built_again(
    server: Server, http: httpx.Client
) -> None:
    first, again = create(http), create(http)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert caches(server) == 1
    assert [type(message) for message in server.worker.sent] == [BuildCache]


def test_without_a_key_each_create_makes_a_cache(server: Server, http: httpx.Client) -> None:
    body = {"model": MODEL, "contents": [user(words(100))]}
    names = {http.post(ROUTE, json=body).json()["name"] for _ in range(2)}
    assert len(names) == 2


def test_the_answer_stays_when_the_cache_has_ended_or_its_expiry_has_passed(
    server: Server, http: httpx.Client
) -> None:
    expiry = "2026-05-04T12:10:00Z"
    first = create(http, expireTime=expiry).json()
    assert http.delete(f"/v1/{first['name']}").status_code == 200
    server.clock.advance(3600)
    again = create(http, expireTime=expiry)
    assert again.status_code == 200
    assert (again.json()["name"], again.json()["state"]) == (first["name"], "DELETED")
    assert caches(server) == 1


def test_another_body_is_refused(server: Server, http: httpx.Client) -> None:
    create(http)
    response = create(http, ttl="60s")
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    assert error["details"][0]["reason"] == "IDEMPOTENCY_MISMATCH"
    assert caches(server) == 1


def test_a_create_that_was_refused_leaves_its_key_free(server: Server, http: httpx.Client) -> None:
    assert create(http, contents=[user("too short")]).status_code == 400
    server.script = Script(build_error=ArenaFull("No room."))
    assert create(http).status_code == 429
    server.script = Script()
    assert create(http).status_code == 200
    assert caches(server) == 2


def test_while_the_first_is_built_the_second_waits_for_its_answer(server: Server, http: httpx.Client) -> None:
    server.script = Script(hold_builds=True)
    with server.later(lambda: create(http)) as first:
        server.wait_for(lambda: bool(server.worker.sent))
        with server.client() as other, server.later(lambda: create(other)) as second:
            assert not second.done()
            server.worker.release.set()
            assert first.result().json() == second.result().json()
    assert caches(server) == 1


def test_at_the_deadline_it_is_told_that_the_first_is_not_done(server: Server, http: httpx.Client) -> None:
    server.script = Script(hold_builds=True)
    with server.later(lambda: create(http)) as first:
        server.wait_for(lambda: bool(server.worker.sent))
        body = {"model": MODEL, "contents": [user(words(100))]}
        headers = {"Idempotency-Key": "key-1", "X-Server-Timeout": "1"}
        with server.client() as other:
            response = other.post(ROUTE, json=body, headers=headers)
        assert response.status_code == 409
        error = response.json()["error"]
        assert error["status"] == "ABORTED"
        assert error["details"][0]["reason"] == "IDEMPOTENCY_IN_FLIGHT"
        assert response.headers["retry-after"] == "1"
        server.worker.release.set()
        assert first.result().status_code == 200


def test_whoever_gives_up_waiting_can_come_back_for_the_cache(server: Server, http: httpx.Client) -> None:
    server.script = Script(hold_builds=True)
    body = {"model": MODEL, "contents": [user(words(100))]}
    headers = {"Idempotency-Key": "key-1", "X-Server-Timeout": "1"}
    assert http.post(ROUTE, json=body, headers=headers).status_code == 504
    assert state(server) == CacheState.PENDING
    server.worker.release.set()
    server.wait_for(lambda: state(server) == CacheState.ACTIVE)
    assert create(http).status_code == 200
    assert caches(server) == 1


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256, "a\tb"])
def test_a_key_is_visible_ascii(server: Server, http: httpx.Client, key: str) -> None:
    body = {"model": MODEL, "contents": [user(words(100))]}
    response = http.post(ROUTE, json=body, headers={b"Idempotency-Key": key.encode("latin-1")})
    assert response.status_code == 400
    assert response.json()["error"]["details"][0]["metadata"]["field"] == "Idempotency-Key"
    assert caches(server) == 0
