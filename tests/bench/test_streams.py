"""Instants and gaps of the tokens of streams."""

import pytest

from bench.contestants.streams import gaps, instants


def test_tokens_that_come_together_share_the_time_since_the_one_before() -> None:
    assert instants(None, 5.0, 2) == [5.0, 5.0]
    assert instants(3.0, 5.0, 1) == [5.0]
    assert instants(3.0, 6.0, 3) == pytest.approx([4.0, 5.0, 6.0])


def test_gaps_are_within_an_answer_and_touch_the_time_asked_about() -> None:
    answers = [[0.0, 1.0, 3.0, 4.0], [2.5, 2.75]]
    assert gaps(answers, 2.0, 3.0) == [2.0, 0.25]
