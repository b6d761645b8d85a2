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
    assert knowing(256, 2.0, decode_s=1.0, token_s=0.001).chunk_tokens(1) == 256
    assert knowing(256, 2.0, decode_s=0.001, token_s=0.01).chunk_tokens(1) == 32
    assert knowing(100, math.inf, decode_s=0.1, token_s=0.01).chunk_tokens(1) == 100


def test_a_step_that_was_quicker_than_its_decode_alone_costs_something_still() -> None:
    pace = Pace(256, 2.0)
    pace.observe(1.0, decode_count=4, prefill_tokens=0)
    pace.observe(0.5, decode_count=4, prefill_tokens=100)
    assert pace.token_s == pytest.approx(0.0005)


def test_one_long_step_is_no_measure() -> None:
    """None comes without prefill while a long text is created: what was known before lasts as long."""
    pace = knowing(256, 2.0, decode_s=0.1, token_s=0.004)
    pace.observe(0.1, decode_count=1, prefill_tokens=0)
    pace.observe(0.9, decode_count=1, prefill_tokens=0)
    assert pace.chunk_tokens(1) == 50


def test_the_price_of_a_token_is_the_second_highest_of_late() -> None:
    pace = Pace(256, 2.0)
    for price in (0.009, 0.001, 0.002, 0.003, 0.004, 0.005):
        pace.observe(price * 100, decode_count=0, prefill_tokens=100)
    assert pace.token_s == pytest.approx(0.004)


def test_more_answers_at_once_take_longer() -> None:
    pace = knowing(256, 2.0, decode_s=0.1, token_s=0.004)
    pace.observe(0.3, decode_count=8, prefill_tokens=0)
    assert [pace.chunk_tokens(count) for count in (1, 4, 6, 8, 32)] == [50, 50, 150, 150, 150]


def knowing(largest: int, stretch: float, *, decode_s: float, token_s: float) -> Pace:
    """What a step of one decode row takes, and what a token."""
    pace = Pace(largest, stretch)
    pace.observe(decode_s, decode_count=1, prefill_tokens=0)
    pace.observe(token_s * 100, decode_count=0, prefill_tokens=100)
    return pace
