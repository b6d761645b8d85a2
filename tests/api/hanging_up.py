"""Requests whose client goes at a moment of the test's choosing: through the whole application, without a socket."""

import asyncio
import json
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from starlette.types import Message, Scope

from api.app import create_app
from api.pools import Pools
from tests.api.harness import Server

_LOOKS_SECONDS = 0.1
_PATIENCE_SECONDS = 20.0


class Leaving(Enum):
    """HANGS_UP: the client goes, of which the application hears where it listens. CANCELLED: the server ends the request right there, as
    it does with those that still run when it stops."""

    HANGS_UP = auto()
    CANCELLED = auto()


def request(
    server: Server,
    route: str,
    body: dict[str, Any] | None = None,
    leave_at: int | None = None,
    *,
    method: str = "POST",
    leaving: Leaving = Leaving.HANGS_UP,
) -> tuple[bool, bytes]:
    """Make a request of an application of its own, whose client goes when it waits for the n-th time; never if None.

    Gives whether it waited so often, or was over or stood still before (then its client has gone too), and its answer.
    """
    path, _, query = route.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"x-goog-api-key", server.key.encode())],
    }
    content = b"" if body is None else json.dumps(body).encode()
    client = _Client([content[: len(content) // 2], content[len(content) // 2 :]])

    async def run() -> bool:
        loop, waits = asyncio.get_running_loop(), 0

        def on_wait(number: int) -> None:
            nonlocal waits
            waits = number
            if number == leave_at:
                client.gone.set()
            if number == leave_at and leaving is Leaving.CANCELLED:
                task.cancel()

        def look(waits_before: int) -> None:
            """It stands still once the worker holds and it has not gone on since the last look."""
            if server.worker.is_holding and waits == waits_before:
                client.gone.set()
            else:
                loop.call_later(_LOOKS_SECONDS, look, waits)

        if leave_at is not None:
            look(0)
        state = replace(server.state)  # its pools belong to this event loop
        app = create_app(state)

        async def answer() -> None:
            await _counted(app(scope, client.receive, client.send), on_wait)

        task = asyncio.create_task(answer())
        await asyncio.wait({task}, timeout=_PATIENCE_SECONDS)
        assert task.done(), "it stands still"
        if not task.cancelled():
            task.result()
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"
        await _settle(state.pools, leaving)
        return leave_at is not None and waits >= leave_at

    return _with_its_threads(run), b"".join(each.get("body", b"") for each in client.sent)


@dataclass
class _Client:
    """to_come: of the body, unless it goes before. sent: to it."""

    to_come: list[bytes]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[Message] = field(default_factory=list)

    async def receive(self) -> Message:
        if self.to_come and not self.gone.is_set():
            await asyncio.sleep(0)  # it is on its way
        if self.to_come and not self.gone.is_set():
            return {"type": "http.request", "body": self.to_come.pop(0), "more_body": bool(self.to_come)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)  # a socket that is full for a moment
        self.sent.append(message)


@types.coroutine
def _counted(
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


async def _settle(pools: Pools, leaving: Leaving) -> None:
    """Nothing of the pools is taken any more. A thread whose request was cancelled still ends what it has begun."""
    assert (pools._units.borrowed_tokens, pools._computing.borrowed_tokens) == (0, 0)
    if leaving is Leaving.CANCELLED:
        await asyncio.sleep(0.01)


def _with_its_threads(run: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
    """Run a loop, and wait for the threads that it has started."""
    before = set(threading.enumerate())
    result = asyncio.run(run())
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("AnyIO"):
            thread.join(_PATIENCE_SECONDS)
            assert not thread.is_alive()
    return result
