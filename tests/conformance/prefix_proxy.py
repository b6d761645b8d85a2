"""A reverse proxy on a free port that serves a server under a path of its own, as gateways do."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socket import create_connection, socket
from urllib.parse import urlsplit

PREFIX = "/behind/a/gateway"


@contextmanager
def prefixed(address: str) -> Iterator[str]:
    """Give the address under which `address` is to be found, with the slash that people write at its end."""
    host, port = urlsplit(address).hostname, urlsplit(address).port

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with create_connection((host, port)) as inner:
                back = threading.Thread(target=_pour, args=(inner, self.request, b""))
                back.start()
                _pour(self.request, inner, PREFIX.encode())
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX}/"
        server.shutdown()


def _pour(source: socket, target: socket, without: bytes) -> None:
    """Pass on what comes until there is no more. A request's head is small, and comes in one piece."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data.replace(b" " + without + b"/", b" /", 1) if without else data)
        target.shutdown(1)
    except OSError:  # one side has hung up: the other is to learn it
        target.close()
