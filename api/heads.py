"""The HTTP/1.1 protocol of the server, with a bound on what it keeps and joins before the application sees anything.

The parser puts a header together from its pieces by copying all of it each time, on the event loop: one that never ends
would hold up every other client, and needs no key.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 1 << 16  # and what one read from the socket holds


class BoundedHeads(HttpToolsProtocol):
    """Refuses a request line, headers, chunk extensions or trailers that go on and on.

    Counted is what arrives while nothing of a body does; the read in which a head begins or ends is not.
    """

    _idle_bytes = 0
    _has_advanced = False

    def data_received(self, data: bytes) -> None:
        self._has_advanced = False
        super().data_received(data)
        self._idle_bytes = 0 if self._has_advanced else self._idle_bytes + len(data)
        if self._idle_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        self._has_advanced = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._has_advanced = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_advanced = True
        super().on_message_complete()
