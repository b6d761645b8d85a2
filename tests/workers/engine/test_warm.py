"""What was found is as good as what was computed: after a stop, in bfloat16, with log probabilities, after eviction."""

import copy

import pytest
import torch

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import random_tokens, tiny_modules
from workers.engine.sequence import Ending

ANSWERED, STOPPED = (Ending.MAX_TOKENS, None), (Ending.STOP, None)


def ask(driver: Driver, prompt: list[int], cache_id: str | None = None, **more: object) -> Answer:
    answer = driver.ask(prompt, cache_id, namespace=NAMESPACE, **more)  # type: ignore[arg-type]
    assert answer.outcome in (ANSWERED, STOPPED)
    return answer


@pytest.mark.trap("T3")
@pytest.mark.parametrize("stop_at", [1, 2, 40, 70])
def test_behind_an_answer_that_its_listener_stopped(drive: Drive, stop_at: int) -> None:
    """As a stop sequence does: the token that completed it was drawn, and never computed."""
    driver = drive(blocks=64)
    prompt = random_tokens(140, seed=1)
    cold = ask(driver, prompt, max_output_tokens=80)
    with driver.standing_still():
        driver.engine._tree.evict(64)
    heard: list[int] = []

    def stop(token: int) -> bool:
        heard.append(token)
        return len(heard) == stop_at

    stopped = ask(driver, prompt, max_output_tokens=80, on_token=stop)
    assert (stopped.outcome, stopped.reused, stopped.tokens) == (STOPPED, [0], cold.tokens[:stop_at])
    warm = ask(driver, prompt, max_output_tokens=80)
    assert (warm.reused, warm.tokens) == ([128], cold.tokens)
    assert_like_oracle(driver.oracle, warm)
    onward = ask(driver, [*prompt, *stopped.tokens, 7, 8])
    assert onward.reused == [(140 + stop_at - 1) // 64 * 64]
    assert_like_oracle(driver.oracle, onward)


@pytest.mark.trap("T1")
def test_in_bfloat16_it_is_close() -> None:
    """Tokens may differ there: what is found was computed in other chunks. transformers' own bfloat16 is up to 0.23 off float32 here."""
    module, oracle = tiny_modules("llama")
    driver = Driver(copy.deepcopy(module).bfloat16(), oracle, blocks=600, dtype=torch.bfloat16)
    for number in range(40):
        prompt = random_tokens(66 + 7 * number, seed=number)
        cold, warm = (ask(driver, prompt, max_output_tokens=1) for _ in range(2))
        assert warm.reused == [(len(prompt) - 1) // 64 * 64] != [0]
        first, second = cold.logits[0].float(), warm.logits[0].float()
        assert float((first - second).abs().max()) <= 0.1 * float(first.abs().max())
    driver.close()


@pytest.mark.trap("T44")
@pytest.mark.parametrize("cache_tokens", [0, 70, 128])
def test_log_probabilities_are_those_of_a_run_that_found_nothing(drive: Drive, cache_tokens: int) -> None:
    driver = drive()
    prompt = random_tokens(200, seed=1)
    cache_id = "cache" if cache_tokens else None
    if cache_tokens:
        driver.build("cache", prompt[:cache_tokens])
    cold = driver.ask(prompt, top_logprobs=3)
    assert cold.outcome == ANSWERED
    for reused in (0, 192 - cache_tokens):
        found = ask(driver, prompt[cache_tokens:], cache_id, top_logprobs=3)
        assert found.reused == [reused]
        assert found.tokens == cold.tokens
        for mine, theirs in zip(found.logprobs, cold.logprobs, strict=True):
            assert mine is not None
            assert theirs is not None
            assert mine.chosen == pytest.approx(theirs.chosen, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


@pytest.mark.trap("T35")
@pytest.mark.trap("T36")
@pytest.mark.trap("T43")
@pytest.mark.parametrize("evicted_blocks", [1, 3, 5, 40])
def test_what_was_evicted_is_computed_again_and_not_counted(drive: Drive, evicted_blocks: int) -> None:
    """The end goes first, so that all that is left is still found."""
    driver = drive(blocks=40)
    prompt = random_tokens(6 * 64 + 9, seed=1)
    cold = ask(driver, prompt)
    with driver.standing_still():
        driver.engine._tree.evict(evicted_blocks)
    before = driver.engine.counters.prefill_tokens
    warm = ask(driver, prompt)
    assert warm.reused == [max(0, 6 - evicted_blocks) * 64]
    assert driver.engine.counters.prefill_tokens - before == len(prompt) - warm.reused[0]
    assert warm.tokens == cold.tokens
    assert_like_oracle(driver.oracle, warm)
