"""Two parts become one, also where one of them, or both, saw nothing."""

import math

import pytest
import torch

from tests.workers.engine.attention.textbook import random
from workers.engine.attention import merge


@pytest.mark.trap("T12")
def test_a_part_that_weighs_nothing_changes_nothing() -> None:
    out, lse = random(2, 3, 5, 8), random(2, 3, 5, seed=1)
    nothing, no_weight = torch.zeros(2, 3, 5, 8), torch.full((2, 3, 5), -math.inf)
    for merged in (
        merge(out.clone(), lse.clone(), nothing, no_weight),
        merge(nothing.clone(), no_weight.clone(), out, lse),
    ):
        torch.testing.assert_close(merged, (out, lse), rtol=0, atol=0)


def test_two_parts_that_weigh_nothing_weigh_nothing() -> None:
    nothing, no_weight = torch.zeros(2, 3, 5, 8), torch.full((2, 3, 5), -math.inf)
    out, lse = merge(nothing.clone(), no_weight.clone(), nothing, no_weight)
    assert torch.equal(out, nothing)
    assert torch.equal(lse, no_weight)


def test_rows_that_see_nothing_stand_among_rows_that_do() -> None:
    out, lse = random(3, 8), torch.tensor([0.5, -math.inf, -math.inf])
    out[1:] = 0
    other, other_lse = random(3, 8, seed=1), torch.tensor([-math.inf, 2.0, -math.inf])
    other[::2] = 0
    merged, merged_lse = merge(out.clone(), lse, other, other_lse)
    assert torch.equal(merged, torch.stack([out[0], other[1], torch.zeros(8)]))
    assert merged_lse.tolist() == [0.5, 2.0, -math.inf]


def test_large_and_distant_scores_merge_without_overflow() -> None:
    out, other = torch.full((1, 4), 2.0), torch.full((1, 4), 5.0)
    merged, lse = merge(out, torch.tensor([3e4]), other, torch.tensor([-3e4]))
    assert torch.equal(merged, torch.full((1, 4), 2.0))
    assert lse.tolist() == [3e4]


@pytest.mark.trap("T13")
def test_a_log_sum_exp_of_any_stride_is_read_right() -> None:
    out, other = random(3, 7, 4), random(3, 7, 4, seed=1)
    lse, other_lse = random(7, 3, seed=2).t(), random(3, 14, seed=3)[:, ::2]
    assert not lse.is_contiguous()
    expected = merge(out.clone(), lse.contiguous(), other, other_lse.contiguous())
    torch.testing.assert_close(merge(out, lse, other, other_lse), expected)


def test_the_first_part_becomes_the_whole_and_the_other_stays() -> None:
    out, lse, other, other_lse = random(3, 8), random(3, seed=1), random(3, 8, seed=2), random(3, seed=3)
    merged = merge(out, lse, other, other_lse)
    assert (merged[0] is out, merged[1] is lse) == (True, True)
    assert torch.equal(other, random(3, 8, seed=2))
    assert torch.equal(other_lse, random(3, seed=3))
