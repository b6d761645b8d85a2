"""The transport of the embedded server: both sides live in one process.

Messages are handed to handlers that the composition root injects; events come back from any thread and are moved to the
event loop that opened the channel.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from core.errors import Unavailable
from core.messages import Event, Message


class LocalChannel:
    """An unbounded queue on the loop that opened it. Its producer is bounded by the request's own token limit."""

    def __init__(self, channel_id: str, forget: Callable[["LocalChannel"], None]) -> None:
        self.channel_id = channel_id
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._expected = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget(self)

    async def next(self) -> Event:
        event = await self._events.get()
        if event.number != self._expected:
            raise Unavailable(
                f"Event {self._expected} of {self.channel_id} was lost (received {event.number}). Send the request again."
            )
        self._expected += 1
        return event

    def put(self, event: Event) -> None:
        """Called from any thread. A loop that has stopped has nobody left to tell."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


class LocalTransport:
    """Connects `api` and `workers` inside one process; see core.transport.Transport for the contract."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._channels: dict[str, LocalChannel] = {}
        self._lock = threading.Lock()
        self._handle: Callable[[Message], None] | None = None
        self._cancel: Callable[[str], None] | None = None

    def connect(self, handle: Callable[[Message], None], cancel: Callable[[str], None]) -> None:
        """Inject the worker's side. Both must return at once."""
        self._handle = handle
        self._cancel = cancel

    def close(self) -> None:
        """Take nothing more, and stop what runs: whoever has a channel open learns it from its last event."""
        self._handle = None
        with self._lock:
            channel_ids = list(self._channels)
        for channel_id in channel_ids:
            self.cancel(channel_id)

    def open(self, channel_id: str) -> LocalChannel:
        channel = LocalChannel(channel_id, self._forget)
        with self._lock:
            self._channels[channel_id] = channel
        return channel

    def send(self, message: Message) -> None:
        handle = self._handle
        if handle is None:
            raise Unavailable(
                "The server is starting or stopping. Try again in a moment.", retry_after_seconds=1
            )
        handle(message)

    def cancel(self, channel_id: str) -> None:
        if self._cancel is not None:
            self._cancel(channel_id)

    def publish(self, channel_id: str, event: Event) -> None:
        """The worker's side: tell whoever has the channel open. Nobody listening is not an error."""
        with self._lock:
            channel = self._channels.get(channel_id)
        if channel is not None:
            channel.put(event)

    def _forget(self, channel: LocalChannel) -> None:
        with self._lock:
            if self._channels.get(channel.channel_id) is channel:
                del self._channels[channel.channel_id]
