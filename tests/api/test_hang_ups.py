"""A client may hang up at any moment: wherever its request waits just then, nothing is left open, held or owed by mistake."""

import asyncio
import json
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from sqlalchemy import select
from starlette.types import Message, Scope

from api.app import create_app
from core.transport.local import LocalTransport
from models.cache import Cache, CacheState
from models.usage import Usage, UsageKind, UsageState
from tests.api.harness import MODEL, Server, user, words
from tests.fakes.worker import Script

CREATE, ASK = "/v1/cachedContents", f"/v1/models/{MODEL}:generateContent"
STREAM, ARRAY = (
    f"/v1/models/{MODEL}:streamGenerateContent?alt=sse",
    f"/v1/models/{MODEL}:streamGenerateContent",
)
_STANDS_STILL_SECONDS = 1.0


@types.coroutine
def counted(
    coroutine: Coroutine[Any, Any, None], at: int, action: Callable[[], None]
) -> Generator[Any, Any, None]:
    """Run it, and call `action` when it waits for the at-th time."""
    waits, value, error = 0, None, None
    while True:
        try:
            waits_for = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration:
            return
        waits += 1
        if waits == at:
            action()
        value = error = None
        try:
            value = yield waits_for
        except BaseException as raised:  # noqa: BLE001 - passed on to where it belongs
            error = raised


def request(
    server: Server, route: str, body: dict[str, Any], hang_up_at: int | None = None
) -> tuple[bool, bytes]:
    """Make a request of an application of its own, whose client goes when it waits for the n-th time; never if None.

    Gives whether it waited so often, or was over or stood still before (then its client has gone too), and its answer.
    """
    path, _, query = route.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"x-goog-api-key", server.key.encode())],
    }
    sent: list[Message] = []

    async def run() -> bool:
        gone, to_come, is_reached = asyncio.Event(), [json.dumps(body).encode()], False

        async def receive() -> Message:
            if to_come:
                return {"type": "http.request", "body": to_come.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await asyncio.sleep(0)  # a socket that is full for a moment
            sent.append(message)

        def hang_up() -> None:
            nonlocal is_reached
            is_reached = True
            gone.set()

        if hang_up_at is not None:
            asyncio.get_running_loop().call_later(_STANDS_STILL_SECONDS, gone.set)
        app = create_app(replace(server.state))  # its pools belong to this event loop
        await asyncio.wait_for(counted(app(scope, receive, send), hang_up_at or 0, hang_up), 20)
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"
        return is_reached

    return asyncio.run(run()), b"".join(each.get("body", b"") for each in sent)


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
