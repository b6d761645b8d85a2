"""A client that goes at any moment of get, list, patch, delete or countTokens: all of it is done or nothing, and nothing stays taken."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from sqlalchemy import QueuePool, select

from core.messages import DropCache
from models.cache import Cache, CacheState
from models.storage_segment import StorageSegment
from models.usage import Usage
from tests.api.hanging_up import Leaving, request
from tests.api.harness import MODEL, Server, on_each_database, user, words

pytestmark = on_each_database

_FEWEST_WAITS = 3


@dataclass(frozen=True)
class Standing:
    """What the database has of a cache, and of its project's usage."""

    state: CacheState
    has_content: bool
    expire_at: datetime
    billed_until: datetime
    usage: tuple[tuple[str, str], ...]

    def extended(self, until: datetime) -> "Standing":
        return replace(self, expire_at=until, billed_until=until)

    def deleted(self, at: datetime) -> "Standing":
        return replace(self, state=CacheState.DELETED, has_content=False, billed_until=at)


@dataclass(frozen=True)
class Short:
    """A request about a cache. body: of the n-th try. done: what stands when all of it is done, of what stood, the try and the time."""

    method: str
    route: str
    body: Callable[[str, int], dict[str, Any] | None]
    done: Callable[[Standing, int, datetime], Standing]

    def send(self, server: Server, name: str, moment: int, leaving: Leaving) -> tuple[bool, bytes]:
        return request(
            server,
            self.route.format(name=name),
            self.body(name, moment),
            moment,
            method=self.method,
            leaving=leaving,
        )


def ttl(moment: int) -> int:
    return 1000 + moment


SHORT = {
    "get": Short("GET", "/v1/{name}", lambda *_: None, lambda stood, *_: stood),
    "list": Short("GET", "/v1/cachedContents", lambda *_: None, lambda stood, *_: stood),
    "countTokens": Short(
        "POST",
        f"/v1/models/{MODEL}:countTokens",
        lambda name, _: {
            "generateContentRequest": {
                "model": f"models/{MODEL}",
                "cachedContent": name,
                "contents": [user("Hi")],
            }
        },
        lambda stood, *_: stood,
    ),
    "patch": Short(
        "PATCH",
        "/v1/{name}",
        lambda _, moment: {"ttl": f"{ttl(moment)}s"},
        lambda stood, moment, now: stood.extended(now + timedelta(seconds=ttl(moment))),
    ),
    "delete": Short("DELETE", "/v1/{name}", lambda *_: None, lambda stood, _, now: stood.deleted(now)),
}


def create(server: Server) -> str:
    body = {"model": MODEL, "contents": [user(words(100))], "ttl": "300s"}
    name: str = json.loads(request(server, "/v1/cachedContents", body)[1])["name"]
    server.clock.advance(10)
    return name


def standing(server: Server, name: str) -> Standing:
    cache_id = name.removeprefix("cachedContents/")
    with server.state.database.read() as session:
        cache = session.get_one(Cache, cache_id)
        usage = session.scalars(select(Usage).where(Usage.project_id == server.project_id)).all()
        return Standing(
            cache.state,
            cache.prefix_text is not None,
            cache.expire_at,
            session.get_one(StorageSegment, cache_id).ends_at,
            tuple(sorted((row.kind.value, row.state.value) for row in usage)),
        )


def connections_taken(server: Server) -> int:
    pool = server.state.database._engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


@pytest.mark.parametrize("leaving", Leaving)
@pytest.mark.parametrize("kind", SHORT)
def test_a_short_request_at_every_wait(server: Server, kind: str, leaving: Leaving) -> None:
    short, name = SHORT[kind], create(server)
    for moment in count(1):
        stood = standing(server, name)
        server.worker.sent.clear()
        is_reached, answer = short.send(server, name, moment, leaving)

        assert connections_taken(server) == 0
        stands, done = standing(server, name), short.done(stood, moment, server.clock.now())
        assert stands in {stood, done}, "half of it was done"
        drops = [message for message in server.worker.sent if isinstance(message, DropCache)]
        is_deleted = stands.state is CacheState.DELETED
        # A server that ends the request ends too, and its engine with it: then nobody need be told.
        assert len(drops) in ({is_deleted} if leaving is Leaving.HANGS_UP else {False, is_deleted})

        found = json.loads(request(server, f"/v1/{name}", method="GET")[1])
        assert ("error" if is_deleted else "name") in found, "the next one is answered"
        if not is_reached:
            assert stands == done
            assert "error" not in json.loads(answer)
            break
        if is_deleted:
            name = create(server)
    assert moment > _FEWEST_WAITS
