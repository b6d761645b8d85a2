"""Several candidates are one request: one bill for all their tokens, and one end with the reason of each."""

import pytest

from core.errors import Internal, Unavailable
from core.messages import FailedEvent, FinishedEvent, FinishReason
from core.sampling import Sampling
from models.usage import UsageState
from tests.workers.workshop import Workshop, some_tokens

FINAL, VOID = UsageState.FINAL, UsageState.VOID
QUESTION = some_tokens(5, 2)


def drawing(seed: int) -> Sampling:
    return Sampling(temperature=1.0, top_p=0.95, top_k=64, seed=seed)


def reasons(workshop: Workshop, request_id: str) -> tuple[FinishReason, ...]:
    event = workshop.last(request_id)
    assert isinstance(event, FinishedEvent)
    return event.reasons


def error(workshop: Workshop, request_id: str) -> Exception:
    event = workshop.last(request_id)
    assert isinstance(event, FailedEvent)
    return event.error


def test_each_is_what_its_seed_alone_gives_and_all_are_billed_in_one_row(workshop: Workshop) -> None:
    cache_id = workshop.cached(some_tokens(70, 1))
    together = workshop.ask(QUESTION, cache_id, sampling=drawing(7), candidate_count=3)
    assert reasons(workshop, together) == (FinishReason.MAX_TOKENS,) * 3
    assert workshop.states_at_end[together] == FINAL
    for index in range(3):
        alone = workshop.ask(QUESTION, cache_id, sampling=drawing(7 + index))
        workshop.last(alone)
        assert workshop.token_ids(together, index) == workshop.token_ids(alone)
    usage = workshop.usage(together)
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (5, 70, 24)
    assert usage.end_reason == "MAX_TOKENS"


def test_one_may_stop_before_the_others(workshop: Workshop) -> None:
    free = workshop.ask(QUESTION, sampling=drawing(1), max_output_tokens=1)
    workshop.last(free)
    stop = workshop.text(free)
    request_id = workshop.ask(
        QUESTION, sampling=drawing(1), max_output_tokens=3, stop_sequences=(stop,), candidate_count=2
    )
    assert reasons(workshop, request_id) == (FinishReason.STOP, FinishReason.MAX_TOKENS)
    assert workshop.token_ids(request_id, 0) == []
    assert workshop.settled(request_id) == (FINAL, 3)


@pytest.mark.parametrize("step", [1, 4])
def test_cancelled_together_exactly_what_all_produced_is_billed(workshop: Workshop, step: int) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(QUESTION, max_output_tokens=500, candidate_count=2)
        workshop.driver.at_step(step, lambda: workshop.runtime.cancel(request_id))
    assert reasons(workshop, request_id) == (FinishReason.CANCELLED,) * 2
    assert [len(workshop.token_ids(request_id, index)) for index in range(2)] == [step + 1] * 2
    assert workshop.settled(request_id) == (FINAL, 2 * (step + 1))


def test_cancelled_before_the_first_token_nothing_is_billed(workshop: Workshop) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(QUESTION, candidate_count=2)
        workshop.runtime.cancel(request_id)
    assert isinstance(error(workshop, request_id), Unavailable)
    assert workshop.settled(request_id) == (VOID, 0)


@pytest.mark.parametrize(("step", "settled"), [(0, (VOID, 0)), (3, (FINAL, 6))])
def test_what_breaks_all_is_told_once(workshop: Workshop, step: int, settled: tuple[UsageState, int]) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    with workshop.driver.standing_still():
        request_id = workshop.ask(QUESTION, max_output_tokens=500, candidate_count=2)
        workshop.driver.at_step(step, broken)
    assert isinstance(error(workshop, request_id), Internal)
    assert workshop.settled(request_id) == settled


def test_all_of_them_wait_for_one_rebuild(workshop: Workshop) -> None:
    prefix = some_tokens(130, 1)
    cache_id = workshop.cached(prefix)
    workshop.restart()
    request_id = workshop.ask(QUESTION, cache_id, candidate_count=2)
    assert reasons(workshop, request_id) == (FinishReason.MAX_TOKENS,) * 2
    expected = workshop.expected([*prefix, *QUESTION], 8)
    assert [workshop.token_ids(request_id, index) for index in range(2)] == [expected] * 2
    assert workshop.settled(request_id) == (FINAL, 16)
    assert workshop.engine.counters.prefill_tokens == 130 + 5
