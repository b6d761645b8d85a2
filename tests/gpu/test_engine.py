"""On a GPU: an engine answers as transformers does on a CPU, with a cache and without, alone and among others."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.workers.engine.driving import Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import FAMILIES, Oracle, random_tokens, tiny_modules
from workers.engine.config import EngineConfig
from workers.engine.faithfulness import check_faithful

pytestmark = pytest.mark.gpu

Drive = Callable[..., Driver]
# Of the largest logit, between a hit and the same prompt without a cache.
CLOSENESS = {torch.float16: 1e-2, torch.bfloat16: 6e-2}


@pytest.fixture
def drive(cuda: torch.device) -> Iterator[Drive]:
    drivers: list[Driver] = []

    def start(family: str, dtype: torch.dtype = torch.float32, **config: Any) -> Driver:
        module, oracle = tiny_modules(family)
        moved = copy.deepcopy(module)
        torch.nn.Module.to(moved, cuda, dtype)
        drivers.append(Driver(moved, oracle, device=cuda, dtype=dtype, **config))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


def ask_all(driver: Driver) -> tuple[list[Answer], list[Answer]]:
    """Eight requests at once against two caches, and the same prompts without any."""
    for length in (65, 200):
        driver.build(f"cache {length}", random_tokens(length, seed=length))
    with driver.standing_still():
        hits = [
            driver.ask(random_tokens(n, seed=n), f"cache {length}", max_output_tokens=4 + n % 7)
            for n, length in (
                (1, 65),
                (2, 200),
                (13, 65),
                (63, 200),
                (64, 65),
                (65, 200),
                (130, 65),
                (301, 200),
            )
        ]
    assert all(hit.outcome for hit in hits)
    with driver.standing_still():
        misses = [driver.ask(hit.prompt, max_output_tokens=4) for hit in hits]
    assert all(miss.outcome for miss in misses)
    return hits, misses


def assert_all_like_oracle(oracle: Oracle, answers: list[Answer]) -> None:
    for answer in answers:
        answer.logits = [each.cpu() for each in answer.logits]
        assert_like_oracle(oracle, answer)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float32_every_answer_is_the_oracles(drive: Drive, family: str) -> None:
    driver = drive(family, blocks=256)
    hits, misses = ask_all(driver)
    assert_all_like_oracle(driver.oracle, [*hits, *misses])


def test_answers_longer_than_a_tail(drive: Drive) -> None:
    driver = drive("llama", tail_tokens=32)
    driver.build("cache", random_tokens(70, seed=1))
    with driver.standing_still():
        answers = [driver.ask(random_tokens(n, seed=n), "cache", max_output_tokens=n * 30) for n in (1, 2, 3)]
    assert all(answer.outcome for answer in answers)
    assert_all_like_oracle(driver.oracle, answers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_in_short_formats_a_hit_is_close_to_no_cache(drive: Drive, family: str, dtype: torch.dtype) -> None:
    """The first token's logits: those behind it follow tokens that may differ."""
    hits, misses = ask_all(drive(family, dtype, blocks=256))
    for hit, miss in zip(hits, misses, strict=True):
        difference = (hit.logits[0] - miss.logits[0]).abs().max() / miss.logits[0].abs().max()
        assert difference <= CLOSENESS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_model_is_faithful_on_this_device(drive: Drive, dtype: torch.dtype) -> None:
    """The check that a start makes on every device that is no CPU."""
    driver = drive("llama", dtype)
    config: EngineConfig = driver.config
    check_faithful(driver.model, config, driver.engine._attend)
