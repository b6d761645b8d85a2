"""A client may hang up at any moment: wherever its request waits just then, nothing is left open, held or owed by mistake."""

import json
from itertools import count
from typing import Any

import pytest
from sqlalchemy import select

from core.transport.local import LocalTransport
from models.cache import Cache, CacheState
from models.usage import Usage, UsageKind, UsageState
from tests.api.hanging_up import request
from tests.api.harness import MODEL, Server, user, words
from tests.fakes.worker import Script

CREATE, ASK = "/v1/cachedContents", f"/v1/models/{MODEL}:generateContent"
STREAM, ARRAY = (
    f"/v1/models/{MODEL}:streamGenerateContent?alt=sse",
    f"/v1/models/{MODEL}:streamGenerateContent",
)


def at_every_wait(server: Server, route: str, body: dict[str, Any], script: Script) -> int:
    """Hang up at each wait in turn, until the worker's end is reached, which waits for ever. Gives how many there are."""
    for moment in count(1):
        server.worker.release.clear()
        server.script = script
        is_reached, _ = request(server, route, body, moment)
        server.worker.end()
        if not is_reached:
            return moment - 1
    raise AssertionError


def rows(server: Server) -> tuple[list[Cache], list[Usage]]:
    with server.state.database.read() as session:
        caches = session.scalars(select(Cache).where(Cache.project_id == server.project_id)).all()
        usage = session.scalars(select(Usage).where(Usage.project_id == server.project_id)).all()
    return list(caches), list(usage)


@pytest.mark.parametrize("route", [ASK, STREAM, ARRAY])
@pytest.mark.parametrize("with_cache", [False, True])
def test_a_question_at_every_wait(server: Server, route: str, with_cache: bool) -> None:
    body: dict[str, Any] = {"contents": [user("Hi")]}
    if with_cache:
        _, answer = request(server, CREATE, {"model": MODEL, "contents": [user(words(100))]})
        body["cachedContent"] = json.loads(answer)["name"]
    assert at_every_wait(server, route, body, Script(hold_before=1)) > 5
    asked = [row for row in rows(server)[1] if row.kind is UsageKind.GENERATE]
    generated = {message.request_id for message in server.worker.generated}
    for row in asked:
        expected = {UsageState.VOID} if row.id not in generated else {UsageState.FINAL}
        assert {row.state} == expected, "whoever was given it settles it; else it is owed by nobody"
    assert generated <= set(server.worker.cancelled)
    assert len(generated) >= 2
    assert_nothing_is_open(server)
    assert json.loads(request(server, ASK, body)[1])["candidates"], "the next one is answered"


def test_a_create_at_every_wait(server: Server) -> None:
    body = {"model": MODEL, "contents": [user(words(100))]}
    assert at_every_wait(server, CREATE, body, Script(hold_builds=True)) > 5
    caches, usage = rows(server)
    assert len(caches) >= 2
    assert {(cache.state, cache.messages) for cache in caches} == {(CacheState.FAILED, None)}
    assert usage == []
    assert_nothing_is_open(server)


def assert_nothing_is_open(server: Server) -> None:
    transport = server.state.transport
    assert isinstance(transport, LocalTransport)
    assert transport._channels == {}
