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
_LOOKS_SECONDS = 0.1


@types.coroutine
def counted(
    coroutine: Coroutine[Any, Any, None], on_wait: Callable[[int], None]
) -> Generator[Any, Any, None]:
    """Run it, and say each time it waits how often it has."""
    waits, value, error = 0, None, None
    while True:
        try:
            waits_for = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration:
            return
        waits += 1
        on_wait(waits)
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
        loop, gone, to_come, waits = (
            asyncio.get_running_loop(),
            asyncio.Event(),
            [json.dumps(body).encode()],
            0,
        )

        async def receive() -> Message:
            if to_come:
                return {"type": "http.request", "body": to_come.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await asyncio.sleep(0)  # a socket that is full for a moment
            sent.append(message)

        def on_wait(number: int) -> None:
            nonlocal waits
            waits = number
            if number == hang_up_at:
                gone.set()

        def look(waits_before: int) -> None:
            """It stands still once the worker holds and it has not gone on since the last look."""
            if server.worker.is_holding and waits == waits_before:
                gone.set()
            else:
                loop.call_later(_LOOKS_SECONDS, look, waits)

        if hang_up_at is not None:
            look(0)
        app = create_app(replace(server.state))  # its pools belong to this event loop
        await asyncio.wait_for(counted(app(scope, receive, send), on_wait), 20)
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"
        return hang_up_at is not None and waits >= hang_up_at

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
