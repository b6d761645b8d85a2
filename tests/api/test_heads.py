"""What goes on and on before a body, or after one, is cut off; what ends is read, however it is split."""

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.api.harness import Server, user
from tests.fakes.worker import Script

PIECE_BYTES = 10_000
ENDLESS_PIECES = 5_000  # more than a head may have, one read holds, and the buffers on the way take
GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/models/tiny:countTokens HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    address = httpx.URL(server.url)
    with socket.create_connection((str(address.host), int(address.port or 0)), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


@pytest.mark.parametrize(
    ("beginning", "unit"),
    [
        (b"\r\n", b"\r\n"),
        (b"GET /", b"x"),
        (GET + b"x-", b"x"),
        (GET + b"x-a: ", b"x"),
        (GET, b"x-a: b\r\n"),
        (POST + b"\r\n2;", b"x"),
        (POST + b"\r\n2\r\n{}\r\n0\r\nx-a: ", b"x"),
        (POST + b"\r\n2\r\n{}\r\n0\r\n", b"x-a: b\r\n"),
    ],
    ids=["before", "line", "name", "value", "headers", "chunk extension", "trailer", "trailers"],
)
def test_what_never_ends_is_cut_off(server: Server, beginning: bytes, unit: bytes) -> None:
    piece = unit * (PIECE_BYTES // len(unit))

    def send_without_end() -> None:
        connection.sendall(beginning)
        for _ in range(ENDLESS_PIECES):
            connection.sendall(piece)

    with connected(server) as connection, pytest.raises(ConnectionError):
        send_without_end()


def test_a_head_in_many_pieces_is_read(server: Server) -> None:
    head = GET + b"x-goog-api-key: %b\r\nx-a: %b\r\n\r\n" % (server.key.encode(), b"x" * 10_000)
    with connected(server) as connection:
        for start in range(0, len(head), 97):
            connection.sendall(head[start : start + 97])
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_many_requests_on_one_connection_do_not_add_up(server: Server) -> None:
    with server.client() as http:
        for _ in range(30):
            assert http.get("/v1/models", headers={"x-a": "x" * 5_000}).status_code == 200


def test_a_body_in_tiny_chunks_is_no_head(http: httpx.Client) -> None:
    """Each chunk's own frame is read beside its bytes."""
    padding = (b" " for _ in range(20_000))
    assert http.post("/v1/models/tiny:countTokens", content=padding).status_code == 400  # it has no contents


JUNK = b"no HTTP at all\r\n\r\n"


@pytest.mark.parametrize(
    "before",
    [b"", GET + b"x-a b\r\n", POST + b"content-length: 1\r\n\r\n", POST + b"\r\nno number\r\n"],
    ids=["line", "header", "two lengths", "chunk"],
)
def test_what_is_no_http_is_refused_in_the_envelope(server: Server, before: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(before + JUNK)
        head, body = received(connection).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["details"][0]["reason"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("after", [b"", JUNK], ids=["hang-up", "junk"])
@pytest.mark.parametrize("queued_count", [0, 1, 2])
@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
def test_a_request_learns_that_its_connection_has_ended_whatever_else_came_on_it(
    server: Server, caplog: pytest.LogCaptureFixture, method: str, queued_count: int, after: bytes
) -> None:
    server.script = Script(hold_before=1)
    with connected(server) as connection:
        connection.sendall(generate_request(server, method) * (1 + queued_count))
        server.wait_for(lambda: len(server.worker.sent) == 1)
        if method == "streamGenerateContent":
            connection.recv(12)
        if after:
            connection.sendall(after)
            assert (b"HTTP/1.1 400 " in received(connection)) == (method == "generateContent")
    server.wait_for(lambda: len(server.worker.cancelled) == 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def generate_request(server: Server, method: str) -> bytes:
    body = json.dumps({"contents": [user("hi")]})
    head = f"POST /v1/models/tiny:{method}?key={server.key} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    answer = b""
    while more := connection.recv(1 << 16):
        answer += more
    return answer
