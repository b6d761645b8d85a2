"""Nothing to attend to, in every form in which it comes; called in a process of its own, which ends with 0 if all is well."""

import math

import torch

from tests.workers.engine.driving import Driver, assert_like_oracle
from tests.workers.engine.tiny import tiny_modules
from workers.engine.attention import choose_backend
from workers.engine.sequence import Ending


def attend_to_nothing() -> None:
    torch.set_num_threads(1)
    attend = choose_backend(torch.device("cpu"), torch.float32, 16)
    _, lse = attend(torch.ones(1, 2, 1, 16), *torch.ones(2, 1, 2, 0, 16), scale=1.0)
    assert lse.flatten().tolist() == [-math.inf, -math.inf]

    # No cache, empty tails, a seat that has ended between two that go on: a row of nothing but hidden tokens.
    driver = Driver(*tiny_modules("llama"))
    with driver.standing_still():
        answers = [
            driver.ask([token], max_output_tokens=count) for token, count in ((5, 9), (6, 2), (7, 9), (8, 1))
        ]
    for answer in answers:
        assert answer.outcome == (Ending.MAX_TOKENS, None)
        assert_like_oracle(driver.oracle, answer)
    driver.close()
