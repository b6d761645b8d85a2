"""Both sides of the embedded server's transport: what is sent arrives once, and events arrive in order or are missed."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from core.errors import Unavailable
from core.messages import (
    BuildCache,
    BuiltEvent,
    DropCache,
    Event,
    FinishedEvent,
    FinishReason,
    Message,
    TokensEvent,
)
from core.transport.local import LocalTransport


def tokens(number: int) -> TokensEvent:
    return TokensEvent(number, (number,), f"word {number}")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 10))


class Worker:
    """Keeps what it is handed."""

    def __init__(self, transport: LocalTransport, refusal: Exception | None = None) -> None:
        self.messages: list[Message] = []
        self.cancelled: list[str] = []
        self._refusal = refusal
        transport.connect(self._handle, self.cancelled.append)

    def _handle(self, message: Message) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.messages.append(message)


def test_events_of_other_threads_arrive_in_order_each_on_its_channel() -> None:
    async def story() -> None:
        transport = LocalTransport("inc_1")
        async with transport.open("one") as one, transport.open("two") as two:

            def publish(channel_id: str) -> None:
                for number in range(200):
                    transport.publish(channel_id, tokens(number))
                transport.publish(channel_id, FinishedEvent(200, (FinishReason.STOP,)))

            threads = [threading.Thread(target=publish, args=(name,)) for name in ("one", "two")]
            for thread in threads:
                thread.start()
            for channel in (one, two):
                heard: list[Event] = [await channel.next() for _ in range(201)]
                assert heard == [*map(tokens, range(200)), FinishedEvent(200, (FinishReason.STOP,))]
            for thread in threads:
                thread.join()

    run(story())


def test_whoever_waits_is_woken_by_an_event() -> None:
    async def story() -> None:
        transport = LocalTransport("inc_1")
        async with transport.open("one") as channel:
            waiting = asyncio.create_task(channel.next())
            await asyncio.sleep(0)
            assert not waiting.done()
            await asyncio.to_thread(transport.publish, "one", BuiltEvent(0))
            assert await waiting == BuiltEvent(0)

    run(story())


def test_nothing_is_lost_that_is_published_before_anybody_waits() -> None:
    async def story() -> None:
        transport = LocalTransport("inc_1")
        async with transport.open("one") as channel:
            transport.publish("one", tokens(0))
            transport.publish("one", tokens(1))
            assert [await channel.next(), await channel.next()] == [tokens(0), tokens(1)]

    run(story())


@pytest.mark.parametrize("numbers", [[1], [0, 2], [0, 0], [0, 1, 3]])
def test_a_lost_event_is_noticed(numbers: list[int]) -> None:
    async def story() -> None:
        transport = LocalTransport("inc_1")
        async with transport.open("one") as channel:
            for number in numbers:
                transport.publish("one", tokens(number))
            for number in numbers[:-1]:
                assert await channel.next() == tokens(number)
            with pytest.raises(Unavailable, match="lost"):
                await channel.next()

    run(story())


def test_a_channel_that_was_left_is_forgotten_and_events_for_nobody_are_no_error() -> None:
    async def story() -> None:
        transport = LocalTransport("inc_1")
        transport.publish("never opened", tokens(0))
        with pytest.raises(KeyError):
            async with transport.open("one"):
                raise KeyError
        transport.publish("one", tokens(0))
        assert not transport._channels
        async with transport.open("one") as again:
            transport.publish("one", BuiltEvent(0))
            assert await again.next() == BuiltEvent(0)

    run(story())


def test_leaving_a_channel_does_not_close_a_later_one_of_the_same_name() -> None:
    async def story() -> None:
        transport = LocalTransport("inc_1")
        async with transport.open("one"):
            later = transport.open("one")
        transport.publish("one", tokens(0))
        async with later:
            assert await later.next() == tokens(0)
        assert not transport._channels

    run(story())


def test_events_for_a_loop_that_has_ended_are_no_error() -> None:
    transport = LocalTransport("inc_1")

    async def story() -> None:
        transport.open("one")

    run(story())
    transport.publish("one", tokens(0))


def test_messages_are_handed_on_and_refusals_come_back() -> None:
    transport = LocalTransport("inc_1")
    worker = Worker(transport)
    messages: list[Message] = [BuildCache("abc", 1), DropCache("abc")]
    for message in messages:
        transport.send(message)
    assert worker.messages == messages
    Worker(transport, refusal=Unavailable("too much to do", retry_after_seconds=1))
    with pytest.raises(Unavailable, match="too much"):
        transport.send(messages[0])


def test_before_an_engine_is_connected_and_after_closing_nothing_is_taken() -> None:
    transport = LocalTransport("inc_1")
    with pytest.raises(Unavailable) as refusal:
        transport.send(DropCache("abc"))
    assert refusal.value.retry_after_seconds
    transport.cancel("gen_1")
    worker = Worker(transport)
    transport.close()
    with pytest.raises(Unavailable):
        transport.send(DropCache("abc"))
    assert not worker.messages


def test_closing_cancels_what_somebody_listens_to_and_its_last_event_still_arrives() -> None:
    async def story() -> None:
        transport = LocalTransport("inc_1")
        worker = Worker(transport)
        async with transport.open("one") as one, transport.open("two"):
            transport.close()
            assert sorted(worker.cancelled) == ["one", "two"]
            transport.publish("one", FinishedEvent(0, (FinishReason.CANCELLED,)))
            assert await one.next() == FinishedEvent(0, (FinishReason.CANCELLED,))

    run(story())


def test_a_cancel_names_its_channel() -> None:
    transport = LocalTransport("inc_1")
    worker = Worker(transport)
    transport.cancel("gen_1")
    assert worker.cancelled == ["gen_1"]
