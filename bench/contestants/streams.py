"""Streams that go on while something else happens, and the instants of their tokens."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

from bench.workload import Prompt

# Gives the instant of each token of an answer. Closed early, it hangs up.
Answering = Callable[[Prompt], AsyncGenerator[float, None]]


@asynccontextmanager
async def going_on(
    answering: Answering, prompts: Iterator[Prompt], count: int
) -> AsyncIterator[list[list[float]]]:
    """So many streams, each with the next prompt as soon as it is done with one; all of them hang up on leaving.

    Entered once each has begun to answer. Gives the instants of every answer, which grow.
    """
    answers: list[list[float]] = []
    beginning = count
    have_begun, is_over = asyncio.Event(), asyncio.Event()

    async def stream() -> None:
        nonlocal beginning
        is_beginning = True
        while not is_over.is_set():
            answers.append(instants := [])
            async with aclosing(answering(next(prompts))) as tokens:
                async for instant in tokens:
                    instants.append(instant)
                    if is_over.is_set():
                        return
                    beginning -= is_beginning
                    is_beginning = False
                    if beginning == 0:
                        have_begun.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(stream())
        await have_begun.wait()
        yield answers
        is_over.set()


def instants(before: float | None, now: float, count: int) -> list[float]:
    """Of tokens that came together: spread over the time since the ones before."""
    if before is None:
        return [now] * count
    return [now - (now - before) * later / count for later in reversed(range(count))]


def gaps(answers: list[list[float]], begin: float, end: float) -> list[float]:
    """Between two tokens of one answer, as far as they have to do with the time from begin to end."""
    pairs = [pair for instants in answers for pair in pairwise(instants)]
    return [later - before for before, later in pairs if later > begin and before < end]
