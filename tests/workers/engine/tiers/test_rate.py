"""A rate follows what happened lately, and weighs it by its size."""

import pytest

from workers.engine.tiers.rate import Rate


def test_nothing_is_known_before_anything_was_observed() -> None:
    assert Rate().per_second is None


def test_one_observation_is_the_rate() -> None:
    rate = Rate()
    rate.observe(300, 2)
    assert rate.per_second == 150


def test_a_new_speed_is_taken_over_within_a_few_observations() -> None:
    rate = Rate()
    for _ in range(20):
        rate.observe(1_000, 1)
    for _ in range(10):
        rate.observe(1_000, 10)
    assert rate.per_second == pytest.approx(100, rel=0.15)


def test_a_small_transfer_says_little_about_large_ones() -> None:
    rate = Rate()
    rate.observe(1_000_000, 1)
    rate.observe(10, 0.01)
    assert rate.per_second == pytest.approx(1_000_000, rel=0.02)


def test_what_took_no_time_is_no_division_by_zero() -> None:
    rate = Rate()
    rate.observe(10, 0)
    assert rate.per_second is None
