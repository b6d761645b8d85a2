"""Several answers to one prompt: each as if it had been asked for alone, from a prompt that is computed once."""

import pytest

from core.errors import ArenaFull, InvalidArgument
from core.sampling import Sampling
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import GREEDY, assert_like_oracle
from tests.workers.engine.tiny import random_tokens
from workers.engine.sequence import Ending

ANSWERED, CANCELLED = (Ending.MAX_TOKENS, None), (Ending.CANCELLED, None)


def drawing(seed: int) -> Sampling:
    return Sampling(temperature=1.0, top_p=0.95, top_k=64, seed=seed)


# Tails hold 128 tokens: prompts of up to 64 lie in the tail and are copied, longer ones have a segment and are shared.
@pytest.mark.parametrize("prompt_tokens", [1, 5, 64, 65, 200])
@pytest.mark.parametrize("cache_tokens", [0, 70])
def test_each_candidate_is_what_its_seed_alone_would_give(
    drive: Drive, prompt_tokens: int, cache_tokens: int
) -> None:
    driver = drive()
    if cache_tokens:
        driver.build("cache", random_tokens(cache_tokens, seed=1))
    cache_id = "cache" if cache_tokens else None
    prompt = random_tokens(prompt_tokens, seed=2)
    alone = [driver.ask(prompt, cache_id, sampling=drawing(seed), max_output_tokens=12) for seed in (1, 2, 3)]
    assert all(answer.outcome == ANSWERED for answer in alone)
    computed = driver.engine.counters.prefill_tokens
    together = driver.ask_for_candidates(
        prompt, cache_id, [drawing(seed) for seed in (1, 2, 3)], max_output_tokens=12
    )
    assert [answer.outcome for answer in together] == [ANSWERED] * 3
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert len({tuple(answer.tokens) for answer in together}) == 3
    assert driver.engine.counters.prefill_tokens == computed + prompt_tokens


@pytest.mark.parametrize("prompt_tokens", [10, 100])
def test_answers_longer_than_a_tail_agree_with_the_oracle(drive: Drive, prompt_tokens: int) -> None:
    driver = drive()
    driver.build("cache", random_tokens(65, seed=1))
    answers = driver.ask_for_candidates(
        random_tokens(prompt_tokens, seed=2), "cache", [GREEDY, drawing(4)], max_output_tokens=300
    )
    assert [answer.outcome for answer in answers] == [ANSWERED] * 2
    greedy, drawn = answers
    assert_like_oracle(driver.oracle, greedy)
    expected = driver.oracle.logits(drawn.prompt, drawn.tokens)
    difference = max(
        float((mine - theirs).abs().max()) for mine, theirs in zip(drawn.logits, expected, strict=True)
    )
    assert difference <= 1e-5 * float(expected.abs().max())


def test_a_candidate_may_end_before_the_others_and_even_before_its_first_token(drive: Drive) -> None:
    driver = drive()
    prompt = random_tokens(70, seed=1)
    alone = {seed: driver.ask(prompt, sampling=drawing(seed)) for seed in range(6)}
    assert all(answer.outcome == ANSWERED for answer in alone.values())
    last_word = alone[0].tokens[0]
    other = next(seed for seed in alone if last_word not in alone[seed].tokens)
    stopped, going_on = driver.ask_for_candidates(
        prompt, None, [drawing(0), drawing(other)], stop_token_ids=frozenset({last_word})
    )
    assert stopped.outcome == (Ending.STOP, None)
    assert stopped.tokens == []
    assert going_on.outcome == ANSWERED
    assert going_on.tokens == alone[other].tokens


def test_candidates_wait_until_there_are_seats_for_all_of_them(drive: Drive) -> None:
    driver = drive(max_running_requests=3)
    with driver.standing_still():
        first = driver.ask([1], request_id="first", max_output_tokens=4)
        many = driver.ask_for_candidates([2], None, [drawing(seed) for seed in range(3)], request_id="many")
        last = driver.ask([3], request_id="last", max_output_tokens=4)
    assert [answer.outcome for answer in (first, *many, last)] == [ANSWERED] * 5
    assert driver.events[:4] == ["first"] * 4
    assert driver.events[-4:] == ["last"] * 4


def test_more_candidates_than_seats_are_refused(drive: Drive) -> None:
    driver = drive(max_running_requests=2)
    answers = driver.ask_for_candidates([1], None, [GREEDY] * 3)
    for answer in answers:
        assert answer.ending == Ending.FAILED
        assert isinstance(answer.error, InvalidArgument)
        assert answer.error.field == "candidate_count"
        assert "(2)" in answer.error.message


def test_candidates_whose_answers_can_never_fit_are_refused_with_the_numbers(drive: Drive) -> None:
    driver = drive(blocks=8)
    assert driver.ask(random_tokens(70, seed=1), max_output_tokens=256).outcome == ANSWERED
    answers = driver.ask_for_candidates(random_tokens(70, seed=1), None, [GREEDY] * 4, max_output_tokens=256)
    for answer in answers:
        assert isinstance(answer.error, ArenaFull)
        assert answer.error.metadata["requested"] == str(64 + 4 * 256)


@pytest.mark.parametrize("step", [0, 1, 2, 3, 6])
def test_a_cancel_ends_every_candidate_at_any_step(drive: Drive, step: int) -> None:
    driver = drive()
    with driver.standing_still():
        answers = driver.ask_for_candidates(
            random_tokens(250, seed=1),
            None,
            [drawing(1), drawing(2)],
            request_id="many",
            max_output_tokens=300,
        )
        driver.at_step(step, lambda: driver.engine.cancel("many"))
    assert [answer.outcome for answer in answers] == [CANCELLED] * 2


def test_candidates_follow_the_build_of_their_cache(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        driver.start_build("cache", random_tokens(150, seed=1))
        answers = driver.ask_for_candidates([1, 2, 3], "cache", [GREEDY, GREEDY])
        driver.at_step(0, lambda: driver.engine.drop("cache"))
    for answer in answers:
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer)


def test_a_cache_that_is_not_there_is_missed_by_every_candidate(drive: Drive) -> None:
    driver = drive()
    answers = driver.ask_for_candidates([1], "unknown", [GREEDY, GREEDY])
    assert [answer.outcome for answer in answers] == [(Ending.PREFIX_MISSING, None)] * 2


def test_a_step_that_breaks_ends_every_candidate_of_the_prompt(drive: Drive) -> None:
    driver = drive()

    def broken() -> None:
        raise RuntimeError("broken")

    with driver.standing_still():
        answers = driver.ask_for_candidates(random_tokens(150, seed=1), None, [GREEDY, GREEDY])
        driver.at_step(1, broken)
    assert [answer.ending for answer in answers] == [Ending.FAILED] * 2


def test_a_token_that_cannot_be_told_ends_every_candidate(drive: Drive) -> None:
    """The second breaks the step in which the prompt let it go on, when the first has ended already."""
    driver, told = drive(), iter([True])

    def tell(_: int) -> bool:
        is_last = next(told, None)
        if is_last is None:
            raise RuntimeError("broken")
        return is_last

    answers = driver.ask_for_candidates([1, 2], None, [GREEDY] * 3, on_token=tell)
    assert [answer.ending for answer in answers] == [Ending.STOP, Ending.FAILED, Ending.FAILED]
    assert "broken" in str(answers[2].error)
    assert driver.engine.counters.steps == 1
