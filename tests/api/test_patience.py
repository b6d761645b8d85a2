"""Nobody waits for what nobody wants: a client that hangs up, or whose time is over, stops the engine."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from core.messages import BuildCache
from models.cache import Cache, CacheState
from models.usage import Usage
from tests.api.harness import MODEL, Server, on_each_database, user, words
from tests.fakes.worker import Script

pytestmark = on_each_database

GENERATE = f"/v1/models/{MODEL}:generateContent"
STREAM = f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"
CREATE = "/v1/cachedContents"
ASK = {"contents": [user("Hi")]}
CACHE = {"model": MODEL, "contents": [user(words(100))]}


@contextmanager
def connection(server: Server, route: str, body: dict[str, Any], **headers: str) -> Iterator[socket.socket]:
    """Send a request; leaving hangs up."""
    address = httpx.URL(server.url)
    content = json.dumps(body).encode()
    lines = [
        f"POST {route} HTTP/1.1",
        "host: x",
        f"x-goog-api-key: {server.key}",
        f"content-length: {len(content)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((str(address.host), int(address.port or 0)), timeout=10) as open_one:
        open_one.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        yield open_one


def usage_row(server: Server, request_id: str) -> Usage:
    with server.state.database.read() as session:
        row = session.get(Usage, request_id)
        assert row is not None
        return row


def cache_row(server: Server) -> Cache:
    message = server.worker.sent[0]
    assert isinstance(message, BuildCache)
    with server.state.database.read() as session:
        row = session.get(Cache, message.cache_id)
        assert row is not None
        return row


class TestHangingUp:
    def test_ends_a_unary_call_and_owes_what_was_made(self, server: Server) -> None:
        server.script = Script(hold_before=1)
        with connection(server, GENERATE, ASK):
            server.wait_for(lambda: len(server.worker.generated) == 1)
        request_id = server.worker.generated[0].request_id
        server.wait_for(lambda: server.worker.cancelled == [request_id])
        server.wait_for(lambda: usage_row(server, request_id).state == "FINAL")
        assert usage_row(server, request_id).output_tokens == 1

    def test_ends_a_stream_in_the_middle(self, server: Server) -> None:
        server.script = Script(hold_before=1)
        with connection(server, STREAM, ASK) as open_one:
            received = b""
            while b"Hello" not in received:
                received += open_one.recv(4096)
        request_id = server.worker.generated[0].request_id
        server.wait_for(lambda: server.worker.cancelled == [request_id])
        server.wait_for(lambda: usage_row(server, request_id).state == "FINAL")
        assert usage_row(server, request_id).output_tokens == 1

    def test_ends_a_stream_before_its_first_text(self, server: Server) -> None:
        server.script = Script(hold_before=0)
        with connection(server, STREAM, ASK):
            server.wait_for(lambda: len(server.worker.generated) == 1)
        server.wait_for(lambda: len(server.worker.cancelled) == 1)

    def test_ends_a_build_and_nothing_is_owed(self, server: Server) -> None:
        server.script = Script(hold_builds=True)
        with connection(server, CREATE, CACHE):
            server.wait_for(lambda: len(server.worker.sent) == 1)
        server.wait_for(lambda: cache_row(server).state == CacheState.FAILED)
        server.wait_for(
            lambda: server.worker.cancelled == [cache_row(server).id]
        )  # told after the row has ended
        with server.state.database.read() as session:
            assert session.query(Usage).filter_by(project_id=server.project_id).all() == []

    def test_leaves_a_build_alone_that_somebody_can_come_back_for(self, server: Server) -> None:
        server.script = Script(hold_builds=True)
        with connection(server, CREATE, CACHE, **{"idempotency-key": "key"}):
            server.wait_for(lambda: len(server.worker.sent) == 1)
        time.sleep(0.3)  # the hang-up is noticed at once, and nothing may come of it
        assert (cache_row(server).state, server.worker.cancelled) == (CacheState.PENDING, [])
        server.worker.release.set()
        server.wait_for(lambda: cache_row(server).state == CacheState.ACTIVE)

    def test_after_the_last_piece_cancels_nothing(self, server: Server, http: httpx.Client) -> None:
        assert http.post(STREAM, json=ASK).status_code == 200
        assert http.post(GENERATE, json=ASK).status_code == 200
        assert server.worker.cancelled == []


class TestDeadline:
    @pytest.mark.parametrize("route", [GENERATE, STREAM])
    def test_a_generation_that_takes_longer_is_504_and_stops(
        self, server: Server, http: httpx.Client, route: str
    ) -> None:
        server.script = Script(hold_before=0)
        started = time.monotonic()
        response = http.post(route, json=ASK, headers={"x-server-timeout": "1"})
        assert 0.9 < time.monotonic() - started < 3
        assert response.status_code == 504
        assert response.json()["error"]["status"] == "DEADLINE_EXCEEDED"
        assert server.worker.cancelled == [server.worker.generated[0].request_id]

    def test_a_stream_that_has_begun_ends_with_the_error(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(hold_before=1)
        response = http.post(STREAM, json=ASK, headers={"x-server-timeout": "1"})
        assert response.status_code == 200
        assert (
            json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == 504
        )
        assert len(server.worker.cancelled) == 1

    def test_a_build_that_takes_longer_fails_unbilled(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(hold_builds=True)
        assert http.post(CREATE, json=CACHE, headers={"x-server-timeout": "1"}).status_code == 504
        assert cache_row(server).state == CacheState.FAILED
        assert server.worker.cancelled == [cache_row(server).id]

    def test_a_build_that_was_done_in_that_very_moment_is_the_answer(
        self, server: Server, http: httpx.Client
    ) -> None:
        server.script = Script(hold_built=True)
        response = http.post(CREATE, json=CACHE, headers={"x-server-timeout": "1"})
        assert response.status_code == 200
        assert response.json()["name"] == f"cachedContents/{cache_row(server).id}"
        assert cache_row(server).state == CacheState.ACTIVE

    def test_a_body_that_trickles_in_is_no_exception(self, server: Server) -> None:
        address = httpx.URL(server.url)
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\nx-goog-api-key: {server.key}\r\n"
        with socket.create_connection((str(address.host), int(address.port or 0)), timeout=10) as open_one:
            open_one.sendall(f"{head}x-server-timeout: 1\r\ncontent-length: 100\r\n\r\n{{".encode())
            assert b" 504 " in open_one.recv(4096).split(b"\r\n")[0]

    def test_more_time_than_is_needed_changes_nothing(self, http: httpx.Client) -> None:
        assert (
            http.post(GENERATE, json=ASK, headers={"x-server-timeout": "999999999999999"}).status_code == 200
        )

    @pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", ""])
    def test_a_bad_one_is_refused(self, server: Server, http: httpx.Client, value: str) -> None:
        response = http.post(GENERATE, json=ASK, headers={"x-server-timeout": value})
        assert response.status_code == 400
        assert "x-server-timeout" in response.json()["error"]["message"]
        assert server.worker.sent == []
