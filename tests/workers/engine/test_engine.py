"""What a request gets, whoever shares the engine with it: its own tokens, one ending, and never a mate's failure."""

import pytest
import torch

from core.errors import Internal, Unavailable
from core.sampling import Sampling
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import random_tokens, tiny_modules
from workers.engine.sequence import Ending
from workers.engine.step import Step


def drawing(seed: int) -> Sampling:
    return Sampling(temperature=1.0, top_p=0.95, top_k=64, seed=seed)


@pytest.mark.trap("T10")
def test_a_seed_draws_the_same_tokens_alone_and_among_others_with_a_cache_and_without(drive: Drive) -> None:
    driver = drive()
    driver.build("cache", random_tokens(70, seed=1))
    question = random_tokens(10, seed=2)
    alone = driver.ask(question, "cache", sampling=drawing(5), max_output_tokens=20)
    assert alone.outcome
    with driver.standing_still():
        mates = [
            driver.ask(random_tokens(n, seed=n), "cache", sampling=drawing(n), max_output_tokens=20)
            for n in (3, 70, 20)
        ]
        among_others = driver.ask(question, "cache", sampling=drawing(5), max_output_tokens=20)
        uncached = driver.ask(alone.prompt, sampling=drawing(5), max_output_tokens=20)
        other_seed = driver.ask(question, "cache", sampling=drawing(6), max_output_tokens=20)
    assert all(mate.outcome for mate in mates)
    assert among_others.outcome
    assert uncached.outcome
    assert alone.tokens == among_others.tokens == uncached.tokens
    assert other_seed.outcome
    assert other_seed.tokens != alone.tokens


def test_a_draw_is_keyed_by_its_position_so_that_a_request_can_go_on_elsewhere(drive: Drive) -> None:
    driver = drive()
    prompt = random_tokens(20, seed=1)
    whole = driver.ask(prompt, sampling=drawing(3), max_output_tokens=16)
    assert whole.outcome
    rest = driver.ask([*prompt, *whole.tokens[:7]], sampling=drawing(3), max_output_tokens=9)
    assert rest.outcome
    assert whole.tokens[7:] == rest.tokens


def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(drive: Drive) -> None:
    driver = drive()
    prompt = random_tokens(5, seed=1)
    free = driver.ask(prompt, max_output_tokens=10)
    assert free.outcome == (Ending.MAX_TOKENS, None)
    assert len(free.tokens) == 10
    at = next(i for i, token in enumerate(free.tokens) if i > 2 and token not in free.tokens[:i])
    stopped = driver.ask(prompt, max_output_tokens=10, stop_token_ids=frozenset({free.tokens[at], 319}))
    assert stopped.outcome == (Ending.STOP, None)
    assert stopped.tokens == free.tokens[:at]


def test_a_listener_can_end_its_request_at_any_token(drive: Drive) -> None:
    driver = drive()
    heard: list[int] = []

    def stop_at_third(token: int) -> bool:
        heard.append(token)
        return len(heard) == 3

    answer = driver.ask([1, 2, 3], max_output_tokens=10, on_token=stop_at_third)
    assert answer.outcome == (Ending.STOP, None)
    assert len(heard) == 3


def test_a_cache_that_is_not_there_is_missed_without_any_compute(drive: Drive) -> None:
    driver = drive()
    assert driver.ask([1, 2], "unknown").outcome == (Ending.PREFIX_MISSING, None)
    assert driver.engine.counters.steps == 0


def test_a_cache_is_computed_once_however_often_it_is_built(drive: Drive) -> None:
    driver = drive()
    tokens = random_tokens(250, seed=1)
    with driver.standing_still():
        builds = [driver.start_build("cache", tokens) for _ in range(3)]
        follower = driver.ask([1, 2, 3], "cache")
    assert [build.outcome for build in builds] == [(Ending.BUILT, None)] * 3
    assert driver.start_build("cache", tokens).outcome == (Ending.BUILT, None)
    assert follower.outcome == (Ending.MAX_TOKENS, None)
    assert_like_oracle(driver.oracle, follower)
    assert driver.engine.counters.prefill_tokens == 250 + 3


def test_a_request_waits_for_the_build_of_its_cache_and_others_pass_it(drive: Drive) -> None:
    driver = drive(max_running_requests=1)
    with driver.standing_still():
        driver.start_build("cache", random_tokens(1000, seed=1))
        waiting = driver.ask([1], "cache", max_output_tokens=1)
        passing = [driver.ask([n], request_id="passing", max_output_tokens=2) for n in (2, 3)]
    for answer in (waiting, *passing):
        assert answer.outcome == (Ending.MAX_TOKENS, None)
        assert_like_oracle(driver.oracle, answer)
    assert driver.events == [*["passing"] * 4, "cache", "request 1"]


def test_a_rebuild_that_somebody_waits_for_comes_before_those_in_the_background(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        builds = [
            driver.start_build(name, random_tokens(150, seed=number), is_rebuild=True, is_urgent=False)
            for number, name in enumerate(("first", "second", "third"))
        ]
        follower = driver.ask([1], "third", request_id="follower", max_output_tokens=1)
    assert follower.outcome == (Ending.MAX_TOKENS, None)
    assert [build.outcome for build in builds] == [(Ending.BUILT, None)] * 3
    assert driver.events[:4] == ["third", "follower", "first", "second"]


def test_neither_a_long_build_nor_a_long_prompt_holds_up_what_is_under_way(drive: Drive) -> None:
    """In each step every running answer gets its next token, and builds and prompts share the chunk."""
    driver = drive()
    rows_of_steps: list[tuple[int, int]] = []
    others: list[Answer] = []

    def look(step: Step) -> None:
        decoding = sum(row.is_decode for row in step.rows)
        building = sum(row.target is not None and row.seat is None for row in step.rows)
        rows_of_steps.append((decoding, building))

    def start_others(_: int) -> bool:
        if not others:
            driver.model.before.append(look)
            others.append(driver.start_build("cache", random_tokens(1000, seed=1)))
            others.append(driver.ask(random_tokens(600, seed=2), max_output_tokens=1))
        return others[1].ended.is_set()

    running = driver.ask([1, 2], max_output_tokens=100, on_token=start_others)
    assert running.ending == Ending.STOP
    build, prompt = others
    assert not build.ended.is_set()
    assert build.outcome
    assert prompt.outcome
    contended = rows_of_steps[:10]
    assert [decoding for decoding, _ in contended] == [1] * 10
    assert [building for _, building in contended] == [1] * 10


def test_one_too_many_is_told_so_and_no_other_is_harmed(drive: Drive) -> None:
    driver = drive(max_running_requests=2, max_waiting_requests=3)
    with driver.standing_still():
        answers = [driver.ask([n + 1], max_output_tokens=3) for n in range(5)]
        with pytest.raises(Unavailable, match="5 requests") as refusal:
            driver.ask([1])
        assert refusal.value.retry_after_seconds
    assert all(answer.outcome == (Ending.MAX_TOKENS, None) for answer in answers)
    assert driver.ask([1]).outcome == (Ending.MAX_TOKENS, None)


class BrokenError(Exception):
    pass


def break_at(driver: Driver, step: int) -> None:
    def fail() -> None:
        raise BrokenError("the device is on fire")

    driver.at_step(step, fail)


def test_a_broken_step_fails_its_requests_alone_and_the_engine_goes_on(
    drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    driver = drive(max_running_requests=2)
    driver.build("cache", random_tokens(70, seed=1))
    with driver.standing_still():
        hit = driver.ask([1, 2, 3], "cache", max_output_tokens=30)
        long_answer = driver.ask(random_tokens(100, seed=2), max_output_tokens=300)
        waiting = driver.ask([4, 5], "cache")
        break_at(driver, 3)
    for failed in (hit, long_answer):
        assert failed.ending == Ending.FAILED
        assert isinstance(failed.error, Internal)
        assert "on fire" in failed.error.message
        assert failed.tokens
    assert waiting.outcome == (Ending.MAX_TOKENS, None)
    assert_like_oracle(driver.oracle, waiting)
    assert "a step failed" in caplog.text


def test_a_broken_step_fails_a_build_and_all_that_wait_for_it(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        build = driver.start_build("cache", random_tokens(500, seed=1))
        followers = [driver.ask([n], "cache") for n in (1, 2)]
        break_at(driver, 2)
    for answer in (build, *followers):
        assert answer.ending == Ending.FAILED
        assert isinstance(answer.error, Internal)
    assert driver.used_blocks() == 0
    assert driver.ask([1], "cache").ending == Ending.PREFIX_MISSING
    driver.build("cache", random_tokens(500, seed=1))
    again = driver.ask([1], "cache")
    assert again.outcome
    assert_like_oracle(driver.oracle, again)


def test_a_listener_that_breaks_ends_its_step_and_not_the_engine(drive: Drive) -> None:
    driver = drive()

    def broken(_: int) -> bool:
        raise BrokenError("nobody listens")

    assert driver.ask([1, 2], on_token=broken).ending == Ending.FAILED
    assert driver.ask([1, 2]).ending == Ending.MAX_TOKENS


def test_a_model_that_swallows_the_step_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, oracle = tiny_modules("llama")
    driver = Driver(module, oracle)
    forward = module.forward
    monkeypatch.setattr(
        module, "forward", lambda input_ids, **_: forward(input_ids=input_ids, use_cache=False)
    )
    answer = driver.ask([1, 2, 3])
    assert answer.ending == Ending.FAILED
    assert answer.error is not None
    assert "headstart_step" in answer.error.message
    driver.close()


def test_logprobs_come_with_each_token_where_they_are_asked_for(drive: Drive) -> None:
    driver = drive()
    asked = driver.ask([1, 2, 3], top_logprobs=4, sampling=drawing(1))
    plain = driver.ask([1, 2, 3], sampling=drawing(1))
    assert asked.outcome == plain.outcome == (Ending.MAX_TOKENS, None)
    assert asked.tokens == plain.tokens
    assert plain.logprobs == [None] * 8
    expected = torch.log_softmax(driver.oracle.logits(asked.prompt, asked.tokens), dim=-1)
    for token, scores, found in zip(asked.tokens, expected, asked.logprobs, strict=True):
        assert found is not None
        assert found.chosen == pytest.approx(float(scores[token]), abs=1e-4)
        assert [value for _, value in found.top] == pytest.approx(scores.topk(4).values.tolist(), abs=1e-4)


def test_penalties_count_the_answer_and_not_the_prompt(drive: Drive) -> None:
    driver = drive()
    prompt = random_tokens(40, seed=1)
    free = driver.ask(prompt, max_output_tokens=40)
    penalised = driver.ask(prompt, max_output_tokens=40, sampling=Sampling(0.0, 1.0, 0, 0, 2.0, 2.0))
    assert free.outcome == penalised.outcome == (Ending.MAX_TOKENS, None)
    scores = driver.oracle.logits(penalised.prompt, penalised.tokens).clone()
    for i, token in enumerate(penalised.tokens):
        for earlier in set(penalised.tokens[:i]):
            scores[i, earlier] -= 2 + 2 * penalised.tokens[:i].count(earlier)
        assert token == int(scores[i].argmax())
    assert penalised.tokens != free.tokens
