"""What goes over the wire of a stream, and when: values, blank lines while nothing comes, one error at the end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message, Scope

from api.streaming import JSON_ARRAY, SERVER_SENT_EVENTS, Framing, JsonStream
from core.errors import Unavailable

PAUSE = 0.15
SCOPE: Scope = {"type": "http", "path": "/v1/models/m:streamGenerateContent"}
Step = dict[str, Any] | float | Exception


@dataclass
class Sent:
    status: int | None = None
    pieces: list[bytes] = field(default_factory=list)
    is_closed: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def fillers(self) -> int:
        return self.pieces.count(b"\n")


def stream(steps: list[Step], framing: Framing = SERVER_SENT_EVENTS, pause: float = PAUSE) -> Sent:
    """Take the steps: a value is sent, a number waited for, an error raised."""
    sent = Sent()

    async def values() -> AsyncIterator[dict[str, Any]]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step

    @asynccontextmanager
    async def source() -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        try:
            yield values()
        finally:
            sent.is_closed = True

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            sent.status = message["status"]
        else:
            sent.pieces.append(message["body"])

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def run() -> None:
        try:
            await JsonStream(source, framing, pause)(SCOPE, receive, send)
        finally:
            assert sent.is_closed

    asyncio.run(run())
    return sent


def test_nothing_fills_a_stream_that_flows() -> None:
    sent = stream([{"a": 1}, {"a": 2}])
    assert (sent.status, sent.body) == (200, b'data: {"a":1}\n\ndata: {"a":2}\n\n')


@pytest.mark.parametrize("framing", [SERVER_SENT_EVENTS, JSON_ARRAY])
def test_silence_is_filled_before_between_and_after_values(framing: Framing) -> None:
    sent = stream([3.5 * PAUSE, {"a": 1}, 2.5 * PAUSE, {"a": 2}, 1.5 * PAUSE], framing)
    assert sent.status == 200
    assert sent.pieces[0] == b"\n"
    assert 5 <= sent.fillers <= 6
    if framing is JSON_ARRAY:
        assert json.loads(sent.body) == [{"a": 1}, {"a": 2}]
    else:
        lines = [line for line in sent.body.split(b"\n") if line]
        assert lines == [b'data: {"a":1}', b'data: {"a":2}']


def test_an_error_before_anything_was_sent_is_left_to_the_edge() -> None:
    with pytest.raises(Unavailable):
        stream([Unavailable("busy")])


@pytest.mark.parametrize("before", [[1.5 * PAUSE], [{"a": 1}]])
@pytest.mark.parametrize("framing", [SERVER_SENT_EVENTS, JSON_ARRAY])
def test_a_later_one_is_the_last_value(before: list[Step], framing: Framing) -> None:
    sent = stream([*before, Unavailable("busy")], framing)
    assert sent.status == 200
    if framing is JSON_ARRAY:
        last = json.loads(sent.body)[-1]
    else:
        last = json.loads(sent.body.strip().split(b"\n")[-1].removeprefix(b"data: "))
    assert list(last) == ["error"]
    assert last["error"]["status"] == "UNAVAILABLE"
