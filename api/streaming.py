"""Relays JSON values one by one as they come: as server-sent events, or as the elements of one array."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
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


# The one filler that SDKs neither show nor stumble over; white space between values, for an array.
_FILLER = b"\n"


class JsonStream(Response):
    """Opens its source, answers once the first value is there, and closes the source whatever happens.

    An error before the first value becomes an HTTP status; a later one the last value, in the error envelope. Where
    nothing comes for `keep_alive_seconds`, a blank line is sent, so that no proxy takes the silence for death; the status
    is sent with the first of them, and an error after it is an error in the stream. The source is opened here and not in
    the handler, so that it cannot be left open by a response that is never sent.
    """

    def __init__(
        self,
        source: Callable[[], AbstractAsyncContextManager[Values]],
        framing: Framing,
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(
            media_type=framing.media_type, headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._source = source
        self._framing = framing
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        framing = self._framing
        lead: bytes | None = None  # what comes before the next value; None until the status is sent

        async def start() -> None:
            nonlocal lead
            if lead is None:
                lead = framing.opening
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def write(body: bytes) -> None:
            await start()
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async def relay(value: object) -> None:
            nonlocal lead
            await start()
            await write((lead or b"") + framing.before + json_text.dump(value) + framing.after)
            lead = framing.between

        try:
            async with self._source() as values, aclosing(self._with_pauses(values)) as paced:
                async for value in paced:
                    await (write(_FILLER) if value is None else relay(value))
        except Exception as error:
            if lead is None:
                raise  # the edge answers with a status
            await relay(envelope(to_app_error(error), dialect_of(scope["path"])))
        await send({"type": "http.response.body", "body": framing.closing, "more_body": False})

    async def _with_pauses(self, values: Values) -> AsyncGenerator[dict[str, Any] | None]:
        """The values, and None whenever the next one is not there in time."""
        while True:
            coming = asyncio.ensure_future(anext(values))
            try:
                while not (await asyncio.wait({coming}, timeout=self._keep_alive_seconds))[0]:
                    yield None
                value = await coming
            except StopAsyncIteration:
                return
            finally:
                coming.cancel()
                await asyncio.wait({coming})
            yield value
