"""How long an answer is worth waiting for: until the request's deadline, and while the client is there."""

import asyncio
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from core.errors import Cancelled, DeadlineExceeded, InvalidArgument

T = TypeVar("T")
_HEADER = "x-server-timeout"  # whole seconds, sent by Google's SDKs whose caller set a timeout


class Patience:
    """Enter it after the body was read: it listens for the one message that can still come, the hang-up.

    arrived: of the request, by time.monotonic(); it may take `seconds` from then on.
    """

    def __init__(self, receive: Receive, arrived: float, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._deadline = arrived + seconds

    @classmethod
    def of(cls, request: Request, longest_seconds: float) -> Self:
        return cls(request.receive, request.state.arrived, allowed_seconds(request, longest_seconds))

    async def __aenter__(self) -> Self:
        self._gone = asyncio.create_task(self._hang_up())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _stop(self._gone)

    def check(self) -> None:
        """Raise DeadlineExceeded or Cancelled where it is over; ask it before work that nobody would wait for."""
        if self._gone.done():
            raise Cancelled("The client has hung up.")
        if time.monotonic() >= self._deadline:
            raise too_late(self._seconds)

    async def wait(self, coming: Coroutine[Any, Any, T]) -> T:
        """Wait for a result; raise DeadlineExceeded or Cancelled, and stop waiting for it, where it is over before."""
        task = asyncio.create_task(coming)
        try:
            timeout = max(0.0, self._deadline - time.monotonic())
            await asyncio.wait({task, self._gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            await _stop(task)
        if self._gone.done():
            raise Cancelled("The client has hung up.")
        raise too_late(self._seconds)

    async def _hang_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def allowed_seconds(request: Request, longest_seconds: float) -> float:
    """How long a request may take, from its arrival on: as long as the client waits, and as the server lets it."""
    text = request.headers.get(_HEADER)
    if text is None:
        return longest_seconds
    if not text.isdecimal() or int(text[:10]) == 0:
        raise InvalidArgument(
            f"{_HEADER} must be a positive number of whole seconds, not {text[:20]!r}.", field=_HEADER
        )
    return min(float(text[:10]), longest_seconds)


def too_late(seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The answer was not ready within {seconds} seconds. Allow more time, or ask for less."
    )


async def _stop(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait({task})
