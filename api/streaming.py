"""Relays JSON values one by one as they come: as server-sent events, or as the elements of one array."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api import json_text
from api.errors import dialect_of, envelope, to_app_error

Values = AsyncIterator[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Framing:
    media_type: str
    opening: bytes
    before: bytes
    between: bytes
    after: bytes
    closing: bytes


# Exactly `data: `, one line, one blank line: SDKs stumble over comments, event names and a final [DONE].
SERVER_SENT_EVENTS = Framing("text/event-stream", b"", b"data: ", b"", b"\n\n", b"")
JSON_ARRAY = Framing("application/json", b"[", b"", b",\n", b"", b"]")


class JsonStream(Response):
    """Opens its source, answers once the first value is there, and closes the source whatever happens.

    An error before the first value becomes an HTTP status; a later one the last value, in the error envelope. The source
    is opened here and not in the handler, so that it cannot be left open by a response that is never sent.
    """

    def __init__(self, source: Callable[[], AbstractAsyncContextManager[Values]], framing: Framing) -> None:
        super().__init__(
            media_type=framing.media_type, headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._source = source
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        framing = self._framing

        async def relay(value: object, lead: bytes) -> None:
            body = lead + framing.before + json_text.dump(value) + framing.after
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async with self._source() as values:
            first = await anext(values)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await relay(first, framing.opening)
            try:
                async for value in values:
                    await relay(value, framing.between)
            except Exception as error:  # noqa: BLE001 -- the edge of a request whose status is sent already
                await relay(envelope(to_app_error(error), dialect_of(scope["path"])), framing.between)
        await send({"type": "http.response.body", "body": framing.closing, "more_body": False})
