"""How the API reaches an engine: the contract both transports keep. Nothing else knows which of the two runs."""

from types import TracebackType
from typing import Protocol, Self

from core.messages import Event, Message


class Channel(Protocol):
    """The events of one request. Opened before the request is sent, so that none is missed."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def next(self) -> Event:
        """Wait for the next event. Raises Unavailable where an event was lost."""


class Transport(Protocol):
    @property
    def incarnation(self) -> str:
        """Names this run of this process; rows carry it, so that a later run knows whose they were."""

    def open(self, channel_id: str) -> Channel:
        """A channel for the events of a request: its request id, or the cache id of a build."""

    def send(self, message: Message) -> None:
        """Hand a message to an engine. Never blocks; raises Unavailable when draining or when the inbox is full."""

    def cancel(self, channel_id: str) -> None:
        """Stop a generation or a build within one step; it still ends by an event. Unknown ids are ignored."""
