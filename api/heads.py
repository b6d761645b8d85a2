"""The HTTP/1.1 protocol of the server, with a bound on what it keeps and joins before the application sees anything, and
word to every request of a connection that has ended.

The parser puts a header together from its pieces by copying all of it each time, on the event loop: one that never ends
would hold up every other client, and needs no key.
"""

from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api import json_text
from api.errors import Dialect, envelope
from core.errors import InvalidArgument

_MOST_HEAD_BYTES = 1 << 16  # and what one read from the socket holds


class BoundedHeads(HttpToolsProtocol):
    """Refuses a request line, headers, chunk extensions or trailers that go on and on.

    Counted is what arrives while nothing of a body does; the read in which a head begins or ends is not.
    """

    _idle_bytes = 0
    _has_advanced = False
    # Requests that may not be answered yet; several where a client sends the next before it has the answer.
    _cycles: tuple[RequestResponseCycle, ...] = ()

    def data_received(self, data: bytes) -> None:
        self._has_advanced = False
        super().data_received(data)
        self._idle_bytes = 0 if self._has_advanced else self._idle_bytes + len(data)
        if self._idle_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in the envelope of all errors, and end the connection.

        An answer that is under way ends with it, as where a client hangs up: a second one cannot be put into its midst.
        """
        if not any(cycle.response_started for cycle in self._end_cycles()):
            body = json_text.dump(envelope(InvalidArgument(msg), Dialect.GEMINI))
            headers = (
                b"content-type: application/json",
                b"content-length: %d" % len(body),
                b"connection: close",
            )
            head = STATUS_LINE[HTTPStatus.BAD_REQUEST] + b"\r\n".join(headers)
            self.transport.write(head + b"\r\n\r\n" + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_cycles()
        super().connection_lost(exc)

    def _end_cycles(self) -> list[RequestResponseCycle]:
        """Tell every request that is not answered yet that nobody listens; uvicorn tells only the last one that came."""
        ended = [cycle for cycle in self._cycles if not cycle.response_complete]
        for cycle in ended:
            cycle.disconnected = True
            cycle.message_event.set()
        return ended

    def on_message_begin(self) -> None:
        self._has_advanced = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._has_advanced = True
        super().on_headers_complete()
        if self.cycle not in self._cycles:
            self._cycles = (*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle)

    def on_body(self, body: bytes) -> None:
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_advanced = True
        super().on_message_complete()
