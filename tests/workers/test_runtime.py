"""What a request is told, and what it is billed, in that order: the bill first."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from billing.usage import void
from core.errors import AppError, ArenaFull, Cancelled, Internal, Unavailable
from core.messages import BuiltEvent, FailedEvent, FinishedEvent, FinishReason, TokensEvent
from models.cache import CacheState
from models.usage import Usage, UsageState
from prompting.format import PromptFormat
from tests.workers.workshop import Workshop, some_tokens

FINAL, VOID, RESERVED = UsageState.FINAL, UsageState.VOID, UsageState.RESERVED


def failure(workshop: Workshop, channel_id: str) -> AppError:
    event = workshop.last(channel_id)
    assert isinstance(event, FailedEvent)
    return event.error


def reason(workshop: Workshop, request_id: str) -> FinishReason:
    event = workshop.last(request_id)
    assert isinstance(event, FinishedEvent)
    (only,) = event.reasons
    return only


def test_an_answer_comes_as_text_and_is_billed_before_it_is_finished(workshop: Workshop) -> None:
    prefix, question = some_tokens(70, 1), some_tokens(5, 2)
    cache_id = workshop.cached(prefix)
    request_id = workshop.ask(question, cache_id)
    assert reason(workshop, request_id) == FinishReason.MAX_TOKENS
    assert workshop.states_at_end[request_id] == FINAL
    assert workshop.token_ids(request_id) == workshop.expected([*prefix, *question], 8)
    usage = workshop.usage(request_id)
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (5, 70, 8)
    assert usage.end_reason == "MAX_TOKENS"
    detokenizer = workshop.prompt_format.detokenizer()
    text = "".join(map(detokenizer.push, workshop.token_ids(request_id))) + detokenizer.finish()
    assert workshop.text(request_id) == text != ""


@pytest.mark.trap("T43")
def test_what_the_engine_found_is_told_in_every_event_and_billed_as_read(workshop: Workshop) -> None:
    cache_id = workshop.cached(some_tokens(70, 1))
    question = some_tokens(200, 2)
    for count in (0, 192 - 6):  # the first block behind the cache begins with its last six tokens
        request_id = workshop.ask(question, cache_id)
        assert reason(workshop, request_id) == FinishReason.MAX_TOKENS
        events = workshop.events[request_id]
        assert [getattr(event, "implicit_cache_tokens", None) for event in events] == [count] * len(events)
        usage = workshop.usage(request_id)
        assert usage is not None
        assert (usage.prompt_tokens, usage.input_tokens) == (270, 200 - count)
        assert (usage.cache_read_tokens, usage.implicit_cache_tokens) == (70 + count, count)


def test_what_was_found_for_a_request_that_came_to_nothing_is_not_billed(workshop: Workshop) -> None:
    question = some_tokens(200, 1)
    workshop.last(workshop.ask(question))
    with workshop.driver.standing_still():
        request_id = workshop.ask([*question, 5])
        workshop.driver.at_step(0, lambda: workshop.runtime.cancel(request_id))
    workshop.last(request_id)
    usage = workshop.usage(request_id)
    assert usage is not None
    if usage.state == VOID:
        assert (usage.input_tokens, usage.implicit_cache_tokens) == (201, 0)
    else:  # its first token came in that very step
        assert (usage.output_tokens, usage.implicit_cache_tokens) == (1, 192)


def test_a_stop_sequence_ends_the_answer_and_is_neither_shown_nor_billed(workshop: Workshop) -> None:
    question = some_tokens(9, 3)
    free = workshop.ask(question, max_output_tokens=12)
    workshop.last(free)
    pieces = [event.text for event in workshop.events[free] if isinstance(event, TokensEvent)]
    at = next(i for i in range(3, 12) if pieces[i].strip() and pieces[i] not in "".join(pieces[:i]))
    stopped = workshop.ask(question, max_output_tokens=12, stop_sequences=(pieces[at], "never said"))
    assert reason(workshop, stopped) == FinishReason.STOP
    assert workshop.text(stopped) == "".join(pieces[:at])
    assert workshop.settled(stopped) == (FINAL, len(workshop.token_ids(stopped)))


def test_the_end_token_of_the_model_stops_it_and_is_not_billed(
    workshop: Workshop, tiny_folder: Path, tmp_path: Path
) -> None:
    question = some_tokens(4, 1)
    free = workshop.ask(question)
    workshop.last(free)
    drawn = workshop.token_ids(free)
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, drawn[5]]}))
    workshop.prompt_format = PromptFormat.load(folder)
    workshop.restart()
    stopped = workshop.ask(question)
    assert reason(workshop, stopped) == FinishReason.STOP
    until = drawn.index(drawn[5])
    assert workshop.token_ids(stopped) == drawn[:until]
    assert workshop.settled(stopped) == (FINAL, until)


def test_the_first_token_drawn_may_end_it_which_is_billed_as_nothing_but_the_prompt(
    workshop: Workshop,
) -> None:
    question = some_tokens(4, 1)
    free = workshop.ask(question, max_output_tokens=1)
    workshop.last(free)
    request_id = workshop.ask(question, stop_sequences=(workshop.text(free),))
    assert reason(workshop, request_id) == FinishReason.STOP
    assert workshop.token_ids(request_id) == []
    assert workshop.settled(request_id) == (FINAL, 0)


@pytest.mark.parametrize("step", [0, 1])
def test_cancelled_before_the_first_token_nothing_is_billed(workshop: Workshop, step: int) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(250, 1))  # three chunks of prefill
        workshop.driver.at_step(step, lambda: workshop.runtime.cancel(request_id))
    assert isinstance(failure(workshop, request_id), Unavailable)
    assert workshop.states_at_end[request_id] == VOID
    assert workshop.settled(request_id) == (VOID, 0)


def test_cancelled_while_it_waits_nothing_is_billed(workshop: Workshop) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1))
        workshop.runtime.cancel(request_id)
    assert isinstance(failure(workshop, request_id), Unavailable)
    assert workshop.settled(request_id) == (VOID, 0)


@pytest.mark.parametrize("step", [1, 4])
def test_cancelled_later_exactly_what_was_produced_is_billed(workshop: Workshop, step: int) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1), max_output_tokens=500)
        workshop.driver.at_step(step, lambda: workshop.runtime.cancel(request_id))
    assert reason(workshop, request_id) == FinishReason.CANCELLED
    assert workshop.states_at_end[request_id] == FINAL
    assert len(workshop.token_ids(request_id)) == step + 1
    assert workshop.settled(request_id) == (FINAL, step + 1)


def lose_the_next_commits_answer(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database has committed, and the connection ends before it can say so."""
    write, lost = workshop.database.write, [False]

    @contextmanager
    def writing() -> Iterator[Session]:
        with write() as session:
            yield session
        if not lost[0]:
            lost[0] = True
            raise Unavailable("The connection was cut.", retry_after_seconds=1)

    monkeypatch.setattr(workshop.database, "write", writing)


@pytest.mark.parametrize("step", [0, 3])
def test_a_settlement_whose_answer_is_lost_counts_once_and_is_told(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """FINAL with what was produced, or VOID where that is nothing; the caller does not wait for his deadline."""
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1), max_output_tokens=500)
        lose_the_next_commits_answer(workshop, monkeypatch)
        if step:
            workshop.driver.at_step(step, lambda: workshop.runtime.cancel(request_id))
        else:
            workshop.runtime.cancel(request_id)
    last = workshop.last(request_id)
    assert isinstance(last, FinishedEvent if step else FailedEvent)
    assert workshop.settled(request_id) == ((FINAL, step + 1) if step else (VOID, 0))


def test_an_activation_whose_answer_is_lost_is_told(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_id = workshop.create(some_tokens(100, 1))
    lose_the_next_commits_answer(workshop, monkeypatch)
    workshop.build(cache_id)
    assert isinstance(workshop.last(cache_id), BuiltEvent)
    assert workshop.cache(cache_id).state == CacheState.ACTIVE


def test_a_build_is_cancelled_before_the_engine_has_it(workshop: Workshop) -> None:
    cache_id = workshop.create(some_tokens(300, 1))
    before = workshop.engine.counters.prefill_tokens
    with workshop.units_standing_still():
        workshop.build(cache_id)
        workshop.runtime.cancel(cache_id)
    assert isinstance(failure(workshop, cache_id), Cancelled)
    assert workshop.cache(cache_id).state == CacheState.FAILED
    assert workshop.engine.counters.prefill_tokens == before


def test_what_was_held_back_is_shown_and_billed_when_it_is_cancelled(workshop: Workshop) -> None:
    question = some_tokens(5, 1)
    free = workshop.ask(question, max_output_tokens=3)
    workshop.last(free)
    with workshop.driver.standing_still():
        # All that is drawn may become the stop sequence, and so all of it is held.
        request_id = workshop.ask(
            question, max_output_tokens=500, stop_sequences=(workshop.text(free) + " never said",)
        )
        workshop.driver.at_step(2, lambda: workshop.runtime.cancel(request_id))
    assert reason(workshop, request_id) == FinishReason.CANCELLED
    assert len(workshop.events[request_id]) == 2
    assert workshop.token_ids(request_id) == workshop.token_ids(free)
    assert workshop.settled(request_id) == (FINAL, 3)


def test_cancelling_twice_late_or_what_never_was_changes_nothing(workshop: Workshop) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1))
        for name in ("gen_never", request_id, request_id):
            workshop.runtime.cancel(name)
    workshop.last(request_id)
    workshop.runtime.cancel(request_id)
    other = workshop.ask(some_tokens(5, 2))
    assert reason(workshop, other) == FinishReason.MAX_TOKENS
    workshop.runtime.cancel(other)
    assert workshop.settled(other) == (FINAL, 8)


@pytest.mark.parametrize(("step", "settled"), [(0, (VOID, 0)), (3, (FINAL, 3))])
def test_a_broken_step_is_told_and_bills_what_came_before_it(
    workshop: Workshop, step: int, settled: tuple[UsageState, int]
) -> None:
    def break_down() -> None:
        raise RuntimeError("the device is on fire")

    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1))
        workshop.driver.at_step(step, break_down)
    error = failure(workshop, request_id)
    assert isinstance(error, Internal)
    assert "on fire" in error.message
    assert workshop.states_at_end[request_id] == settled[0]
    assert workshop.settled(request_id) == settled
    assert len(workshop.token_ids(request_id)) == settled[1]


def test_what_was_held_back_when_a_step_broke_is_neither_shown_nor_billed(workshop: Workshop) -> None:
    def break_down() -> None:
        raise RuntimeError("the device is on fire")

    question = some_tokens(5, 1)
    free = workshop.ask(question, max_output_tokens=3)
    workshop.last(free)
    with workshop.driver.standing_still():
        request_id = workshop.ask(question, stop_sequences=(workshop.text(free) + " never said",))
        workshop.driver.at_step(2, break_down)
    assert isinstance(failure(workshop, request_id), Internal)
    assert workshop.token_ids(request_id) == []
    assert workshop.settled(request_id) == (VOID, 0)


def test_a_request_that_never_fits_is_told_the_numbers_and_not_billed(
    open_workshop: Callable[..., Workshop],
) -> None:
    workshop = open_workshop(blocks=3)
    request_id = workshop.ask(some_tokens(300, 1))
    error = failure(workshop, request_id)
    assert isinstance(error, ArenaFull)
    assert error.metadata["requested"] == "256"
    assert workshop.settled(request_id) == (VOID, 0)


def test_one_too_many_is_refused_when_it_is_sent(open_workshop: Callable[..., Workshop]) -> None:
    """Nothing of it is left with the worker: its row is still the sender's to void."""
    workshop = open_workshop(max_running_requests=1, max_waiting_requests=1)
    with workshop.driver.standing_still():
        accepted = [workshop.ask(some_tokens(5, n)) for n in (1, 2)]
        with pytest.raises(Unavailable, match="Try again"):
            workshop.ask(some_tokens(5, 3))
    assert [reason(workshop, request_id) for request_id in accepted] == [FinishReason.MAX_TOKENS] * 2
    assert not workshop.runtime._generations
    with workshop.database.read() as session:
        states = session.scalars(select(Usage.state)).all()
    assert sorted(states) == [FINAL, FINAL, RESERVED]


def test_usage_that_was_settled_elsewhere_is_left_alone_and_nothing_is_told(workshop: Workshop) -> None:
    """Another worker has taken the request over: it speaks for it now."""
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1))
        with workshop.database.write() as session:
            assert void(session, request_id, 1, workshop.clock.now(), "TAKEN_OVER")
    other = workshop.ask(some_tokens(5, 2))
    workshop.last(other)
    workshop.runtime._units.stop()
    assert not [event for event in workshop.events[request_id] if not isinstance(event, TokensEvent)]
    assert workshop.settled(request_id) == (VOID, 0)


def test_a_deleted_cache_serves_those_who_read_it_to_the_end(workshop: Workshop) -> None:
    prefix, question = some_tokens(130, 1), some_tokens(5, 2)
    cache_id = workshop.cached(prefix)
    with workshop.driver.standing_still():
        request_id = workshop.ask(question, cache_id, max_output_tokens=12)
        workshop.driver.at_step(3, lambda: workshop.delete(cache_id))
    assert reason(workshop, request_id) == FinishReason.MAX_TOKENS
    assert workshop.token_ids(request_id) == workshop.expected([*prefix, *question], 12)
    assert workshop.settled(request_id) == (FINAL, 12)
    assert workshop.driver.used_blocks() == 0


def test_a_bill_that_cannot_be_written_is_no_finished_answer(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1))
        with workshop.database.write() as session:
            session.execute(
                text("CREATE TRIGGER refuse BEFORE UPDATE ON usage BEGIN SELECT RAISE(ABORT, 'no'); END")
            )
    assert isinstance(failure(workshop, request_id), Internal)
    assert "was not recorded" in caplog.text
    assert workshop.settled(request_id) == (RESERVED, 0)  # until the next start voids it


def test_stopping_answers_everyone_and_settles_everything_first(workshop: Workshop) -> None:
    lost = workshop.cached(some_tokens(70, 1))
    workshop.restart()  # the KV of the cache is gone
    with workshop.driver.standing_still():
        begun = workshop.ask(some_tokens(5, 2), max_output_tokens=500)
        not_begun = workshop.ask(some_tokens(2000, 3), max_output_tokens=5)
        waits_for_rebuild = workshop.ask(some_tokens(5, 4), lost)
        unbuilt = workshop.create(some_tokens(900, 5))
        workshop.build(unbuilt)
        workshop.wait_for_units()
        workshop.driver.at_step(6, lambda: workshop.engine._leave(workshop.engine._begin_stop))
    workshop.engine._thread.join()
    workshop.runtime.stop()
    assert workshop.states_at_end.keys() >= {begun, not_begun, waits_for_rebuild, unbuilt}
    assert reason(workshop, begun) == FinishReason.CANCELLED
    assert workshop.settled(begun) == (FINAL, len(workshop.token_ids(begun)))
    assert workshop.token_ids(begun)
    for channel_id in (not_begun, waits_for_rebuild, unbuilt):
        assert isinstance(failure(workshop, channel_id), Unavailable)
    assert workshop.settled(not_begun) == workshop.settled(waits_for_rebuild) == (VOID, 0)
    assert workshop.cache(unbuilt).state == CacheState.FAILED
