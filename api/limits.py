"""Pure ASGI: refuses a body that is too large, or packed, before anything has read it whole."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import BodyTooLarge, InvalidArgument


class BodyLimit:
    """Counts the bytes that arrive: a chunked body announces no length, and an announced one may be a lie."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidArgument(
                "A packed body is not accepted. Send it without Content-Encoding.", field="content-encoding"
            )
        announced = headers.get("content-length", "")
        # The length of the digits is checked first: Python refuses to read a number of thousands of digits.
        if announced.isdecimal() and (len(announced) > 18 or int(announced) > self._max_bytes):
            raise self._too_large()
        await self._app(scope, self._counting(receive), send)

    def _counting(self, receive: Receive) -> Receive:
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._too_large()
            return message

        return receive_counted

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"The request body is larger than {self._max_bytes} bytes. Send less, or raise HEADSTART_MAX_BODY_BYTES."
        )
