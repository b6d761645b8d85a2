import gzip
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.api.harness import Server, user

ROUTE = "/v1/models/tiny:countTokens"
LIMIT = 100_000  # the settings of these tests


def body_of(size: int) -> bytes:
    empty = json.dumps({"contents": [user("")]}).encode()
    return json.dumps({"contents": [user("x" * (size - len(empty)))]}).encode()


class TestSize:
    def test_a_body_of_the_limit_passes_and_one_byte_more_does_not(self, http: httpx.Client) -> None:
        assert len(body_of(LIMIT)) == LIMIT
        assert http.post(ROUTE, content=body_of(LIMIT)).status_code != 413
        response = http.post(ROUTE, content=body_of(LIMIT + 1))
        assert response.status_code == 413
        assert response.json()["error"]["details"][0]["reason"] == "BODY_TOO_LARGE"

    def test_a_chunked_body_is_counted_as_it_comes(self, http: httpx.Client) -> None:
        def chunks() -> Iterator[bytes]:
            for _ in range(11):
                yield b" " * 10_000

        assert http.post(ROUTE, content=chunks()).status_code == 413

    def test_a_chunked_body_within_the_limit_passes(self, http: httpx.Client) -> None:
        body = json.dumps({"contents": [user("hello")]}).encode()
        response = http.post(ROUTE, content=(body[start : start + 7] for start in range(0, len(body), 7)))
        assert response.json()["totalTokens"] > 0

    @pytest.mark.parametrize("length", ["100001", "9" * 5000])
    def test_an_announced_length_is_enough_to_refuse(self, server: Server, length: str) -> None:
        address = httpx.URL(server.url)
        with socket.create_connection((str(address.host), int(address.port or 0)), timeout=10) as connection:
            head = f"POST {ROUTE} HTTP/1.1\r\nhost: x\r\nx-goog-api-key: {server.key}\r\ncontent-length: {length}\r\n\r\n"
            connection.sendall(head.encode())
            # The larger number uvicorn itself refuses.
            assert connection.recv(4096).split(b"\r\n")[0].split(b" ")[1] in {b"413", b"400"}


class TestEncoding:
    def test_a_packed_body_is_refused(self, http: httpx.Client) -> None:
        packed = gzip.compress(body_of(1000))
        response = http.post(ROUTE, content=packed, headers={"content-encoding": "gzip"})
        assert response.status_code == 400
        assert "Content-Encoding" in response.json()["error"]["message"]

    def test_identity_is_no_packing(self, http: httpx.Client) -> None:
        assert (
            http.post(ROUTE, content=body_of(500), headers={"content-encoding": "identity"}).status_code
            == 200
        )


class TestJson:
    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"[]",
            b'{"a": NaN}',
            b'{"contents": 1, "contents": 1}',
            b'{"contents": "\\ud800"}',
            b"\xff",
            b"[" * 90_000,
        ],
    )
    def test_what_is_no_plain_json_is_400(self, http: httpx.Client, body: bytes) -> None:
        response = http.post(ROUTE, content=body)
        assert response.status_code == 400
        assert response.json()["error"]["status"] == "INVALID_ARGUMENT"

    def test_the_content_type_does_not_matter(self, http: httpx.Client) -> None:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        assert http.post(ROUTE, content=body_of(500), headers=headers).status_code == 200
