"""Every backend that runs on a CPU keeps the contract: plain torch, and the kernels of each number format."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.e2e.processes import run_apart
from tests.workers.engine.attention.nothing import attend_to_nothing
from tests.workers.engine.attention.textbook import assert_close, random, textbook
from workers.engine.attention import Lengths, PartialAttention, choose_backend, merge, plain_attention
from workers.engine.attention.plain import PLAIN

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Tried:
    """A backend in a number format, and how far it may be from float64: out, for values of some units, and log-sum-exp."""

    attend: PartialAttention
    dtype: torch.dtype
    out: float
    lse: float

    def random(self, *size: int, seed: int = 0) -> torch.Tensor:
        return random(*size, seed=seed).to(self.dtype)


TRIED = {
    "oracle": Tried(plain_attention, torch.float32, 1e-5, 1e-5),
    "oracle in bfloat16": Tried(plain_attention, torch.bfloat16, 1e-2, 1e-5),
    "plain": Tried(PLAIN, torch.float32, 1e-5, 1e-5),
    "float32": Tried(choose_backend(CPU, torch.float32, 64), torch.float32, 1e-5, 1e-5),
    "bfloat16": Tried(choose_backend(CPU, torch.bfloat16, 64), torch.bfloat16, 2e-2, 2e-2),
    "float16": Tried(choose_backend(CPU, torch.float16, 64), torch.float16, 2e-3, 1e-3),
}
each_backend = pytest.mark.parametrize("tried", TRIED.values(), ids=TRIED)


@each_backend
@pytest.mark.parametrize("size", [16, 64, 80, 96, 128])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "rows", "tokens"),
    [(4, 2, 3, 700), (6, 6, 1, 1), (8, 1, 14, 65), (2, 2, 100, 30), (3, 1, 60, 65)],
)
def test_a_part_is_a_softmax_and_its_normaliser(
    tried: Tried, size: int, heads: int, kv_heads: int, rows: int, tokens: int
) -> None:
    query = tried.random(1, heads, rows, size)
    key, value = (tried.random(1, kv_heads, tokens, size, seed=seed) for seed in (1, 2))
    part = tried.attend(query, key, value, scale=size**-0.5)
    assert part[0].dtype == tried.dtype
    assert_close(part, textbook(query, key, value, scale=size**-0.5), out=tried.out, lse=tried.lse)


@each_backend
def test_views_of_a_slab_are_read_in_place(tried: Tried) -> None:
    slab = tried.random(3, 500, 64)
    key = value = slab[:, 130:320].unsqueeze(0)
    query = tried.random(1, 6, 5, 64, seed=1)
    part = tried.attend(query, key, value, scale=0.125)
    assert_close(part, textbook(query, key, value, scale=0.125), out=tried.out, lse=tried.lse)


@each_backend
@pytest.mark.parametrize("scattered", [0, 1, 2])
def test_rows_whose_numbers_lie_apart_are_read_as_they_are(tried: Tried, scattered: int) -> None:
    parts = [
        tried.random(1, 6, 5, 64),
        tried.random(1, 2, 90, 64, seed=1),
        tried.random(1, 2, 90, 64, seed=2),
    ]
    expected = textbook(*parts, scale=0.125)
    parts[scattered] = parts[scattered].transpose(-1, -2).contiguous().transpose(-1, -2)
    assert_close(tried.attend(*parts, scale=0.125), expected, out=tried.out, lse=tried.lse)


@each_backend
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_a_causal_part_hides_what_comes_later(tried: Tried, rows: int) -> None:
    """Heads of a token lie together, as a projection leaves them."""
    query = tried.random(1, rows, 4, 16).transpose(1, 2)
    key, value = (tried.random(1, rows, 2, 16, seed=seed).transpose(1, 2) for seed in (1, 2))
    part = tried.attend(query, key, value, scale=0.25, is_causal=True)
    expected = textbook(query, key, value, scale=0.25, is_causal=True)
    assert_close(part, expected, out=tried.out, lse=tried.lse)


@each_backend
@pytest.mark.parametrize("counts", [(5, 1, 40, 17), (40,), (0, 3, 0, 40), (0,)])
def test_each_entry_sees_its_first_tokens_and_may_see_none(tried: Tried, counts: tuple[int, ...]) -> None:
    slabs = tried.random(2, len(counts) + 1, 2, 64, 16)[:, : len(counts), :, :40]
    query = tried.random(len(counts), 2, 3, 16, seed=1)
    part = tried.attend(query, *slabs, scale=0.25, lengths=Lengths(counts, CPU))
    expected = textbook(query, *slabs, scale=0.25, counts=counts)
    assert_close(part, expected, out=tried.out, lse=tried.lse)


@each_backend
def test_what_nobody_sees_may_be_anything_finite(tried: Tried) -> None:
    query, slabs = tried.random(2, 2, 3, 16), tried.random(2, 2, 2, 40, 16, seed=1)
    expected = textbook(query, *slabs, scale=0.25, counts=(5, 0))
    slabs[:, 0, :, 5:] = slabs[:, 1] = 1e3
    part = tried.attend(query, *slabs, scale=0.25, lengths=Lengths((5, 0), CPU))
    assert_close(part, expected, out=tried.out, lse=tried.lse)


@each_backend
@pytest.mark.parametrize("role", ["shared", "own", "tails"])
def test_a_part_without_tokens_weighs_nothing(tried: Tried, role: str) -> None:
    rows = 0 if role == "own" else 3
    query, nothing = tried.random(2, 4, rows, 16), tried.random(2, 2, 0, 16)
    how = {"shared": {}, "own": {"is_causal": True}, "tails": {"lengths": Lengths((0, 0), CPU)}}[role]
    out, lse = tried.attend(query, nothing, nothing, scale=0.25, **how)  # type: ignore[arg-type]
    assert torch.equal(out, torch.zeros_like(query))
    assert torch.equal(lse, torch.full((2, 4, rows), -math.inf))


@each_backend
def test_log_sum_exp_is_natural(tried: Tried) -> None:
    query, key = torch.zeros(1, 2, 1, 16, dtype=tried.dtype), torch.ones(1, 2, 8, 16, dtype=tried.dtype)
    _, lse = tried.attend(query, key, key, scale=1.0)
    torch.testing.assert_close(lse, torch.full((1, 2, 1), math.log(8)), atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["oracle", "plain", "float32"])
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(min_value=0, max_value=200), max_size=4), seed=st.integers(0, 1000))
def test_parts_over_disjoint_keys_merge_to_the_whole(name: str, cuts: list[int], seed: int) -> None:
    attend = TRIED[name].attend
    query = random(1, 4, 6, 16, seed=seed) * 4
    key, value = random(1, 2, 200, 16, seed=seed + 1), random(1, 2, 200, 16, seed=seed + 2)
    out, lse = torch.zeros_like(query), torch.full(query.shape[:3], -math.inf)
    for start, stop in itertools.pairwise([0, *sorted(cuts), 200]):  # two cuts at one place: an empty part
        out, lse = merge(out, lse, *attend(query, key[:, :, start:stop], value[:, :, start:stop], scale=1.0))
    assert_close((out, lse), textbook(query, key, value, scale=1.0), out=2e-5, lse=2e-5)


@pytest.mark.trap("T12")
@pytest.mark.trap("T11")
def test_nothing_to_attend_to_kills_no_process() -> None:
    """The kernel itself dies of zero tokens: a child process shows that none of these reaches it."""
    run_apart(attend_to_nothing)
