"""Chunks of prefill by measured time."""

import math

import pytest

from workers.engine.pace import Pace


def test_nobody_waits_or_nothing_is_known_then_chunks_are_the_largest() -> None:
    pace = Pace(256, 2.0)
    assert pace.chunk_tokens(0) == pace.chunk_tokens(8) == 256
    pace.observe(0.1, decode_count=8, prefill_tokens=0)
    assert pace.chunk_tokens(8) == 256
    pace.observe(1.0, decode_count=0, prefill_tokens=200)
    assert pace.chunk_tokens(0) == 256
    assert pace.chunk_tokens(8) == 40  # 2 × 100 ms at 5 ms a token


def test_a_step_with_both_tells_what_a_token_costs() -> None:
    pace = Pace(256, 2.0)
    pace.observe(0.1, decode_count=8, prefill_tokens=0)
    for _ in range(50):
        pace.observe(0.1 + 100 * 0.002, decode_count=8, prefill_tokens=100)
    assert pace.token_s == pytest.approx(0.002)
    assert pace.chunk_tokens(8) in (99, 100)  # rounded down


def test_chunks_stay_between_their_bounds() -> None:
    pace = Pace(256, 2.0, decode_s=1.0, token_s=0.001)
    assert pace.chunk_tokens(1) == 256
    pace = Pace(256, 2.0, decode_s=0.001, token_s=0.01)
    assert pace.chunk_tokens(1) == 32
    assert Pace(100, math.inf, decode_s=0.1, token_s=0.01).chunk_tokens(1) == 100


def test_a_step_that_was_quicker_than_its_decode_alone_costs_something_still() -> None:
    pace = Pace(256, 2.0, decode_s=1.0)
    pace.observe(0.5, decode_count=4, prefill_tokens=100)
    assert pace.token_s == pytest.approx(0.0005)
