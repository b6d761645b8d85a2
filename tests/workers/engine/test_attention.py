"""Parts of an attention, each with its log-sum-exp, merge into the attention over all."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from workers.engine.attention import (
    PartialAttention,
    choose_backend,
    flash_cpu_attention,
    is_correct,
    merge,
    plain_attention,
)

ROOT = Path(__file__).parents[3]
BACKENDS = [plain_attention, flash_cpu_attention]
CPU = torch.device("cpu")


def random(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def textbook(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """One softmax over all keys, head by head, in float64."""
    groups = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        scores = query[:, head].double() @ key[:, head // groups].double().transpose(-1, -2) * scale
        heads.append(torch.softmax(scores, dim=-1) @ value[:, head // groups].double())
    return torch.stack(heads, dim=1).float()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [16, 64, 80, 96, 128])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "rows", "tokens"), [(4, 2, 3, 700), (6, 6, 1, 1), (8, 1, 42, 65)]
)
def test_a_part_is_a_softmax_and_its_normaliser(
    backend: PartialAttention, size: int, heads: int, kv_heads: int, rows: int, tokens: int
) -> None:
    query, key, value = (
        random(1, heads, rows, size),
        random(1, kv_heads, tokens, size, seed=1),
        random(1, kv_heads, tokens, size, seed=2),
    )
    out, lse = backend(query, key, value, scale=0.2)
    torch.testing.assert_close(out, textbook(query, key, value, 0.2), atol=1e-5, rtol=1e-5)
    scores = torch.einsum("bhrs,bhts->bhrt", query, key.repeat_interleave(heads // kv_heads, dim=1)) * 0.2
    torch.testing.assert_close(lse, scores.double().logsumexp(-1).float(), atol=1e-5, rtol=1e-5)
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_a_slab_are_read_in_place(backend: PartialAttention) -> None:
    slab = random(3, 500, 64)
    key = value = slab[:, 130:320].unsqueeze(0)
    query = random(1, 6, 5, 64, seed=1)
    expected = backend(query, key.contiguous(), value.contiguous(), scale=0.125)
    for actual, wanted in zip(backend(query, key, value, scale=0.125), expected, strict=True):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scattered", [0, 1, 2])
def test_rows_whose_numbers_lie_apart_are_read_as_they_are(backend: PartialAttention, scattered: int) -> None:
    parts = [random(1, 6, 5, 64), random(1, 2, 90, 64, seed=1), random(1, 2, 90, 64, seed=2)]
    expected = backend(*parts, scale=0.125)
    parts[scattered] = parts[scattered].transpose(-1, -2).contiguous().transpose(-1, -2)
    for actual, wanted in zip(backend(*parts, scale=0.125), expected, strict=True):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_causal_part_hides_what_comes_later(backend: PartialAttention) -> None:
    query, key = random(1, 4, 9, 16), random(1, 2, 9, 16, seed=1)
    out, lse = backend(query, key, key, scale=0.25, is_causal=True)
    for row in range(9):
        alone = backend(query[:, :, row : row + 1], key[:, :, : row + 1], key[:, :, : row + 1], scale=0.25)
        torch.testing.assert_close(out[:, :, row : row + 1], alone[0])
        torch.testing.assert_close(lse[:, :, row : row + 1], alone[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("backend_dtype", [torch.float32, torch.bfloat16])
def test_log_sum_exp_is_natural_and_float32_in_every_number_format(
    backend: PartialAttention, backend_dtype: torch.dtype
) -> None:
    query = torch.zeros(1, 2, 1, 16, dtype=backend_dtype)
    key = torch.ones(1, 2, 8, 16, dtype=backend_dtype)
    out, lse = backend(query, key, key, scale=1.0)
    assert out.dtype == backend_dtype
    torch.testing.assert_close(lse, torch.full((1, 2, 1), math.log(8)), atol=2e-4, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(min_value=1, max_value=199), max_size=4), seed=st.integers(0, 1000))
def test_parts_over_disjoint_keys_merge_to_the_whole(
    backend: PartialAttention, cuts: list[int], seed: int
) -> None:
    query, key, value = (
        random(1, 4, 6, 16, seed=seed) * 4,
        random(1, 2, 200, 16, seed=seed + 1),
        random(1, 2, 200, 16, seed=seed + 2),
    )
    borders = [0, *sorted(set(cuts)), 200]
    out = torch.zeros_like(query)
    lse = torch.full(query.shape[:3], -math.inf)
    for start, stop in itertools.pairwise(borders):
        out, lse = merge(out, lse, *backend(query, key[:, :, start:stop], value[:, :, start:stop], scale=1.0))
    whole_out, whole_lse = plain_attention(query, key, value, scale=1.0)
    torch.testing.assert_close(out, whole_out, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(lse, whole_lse, atol=2e-5, rtol=1e-5)


def test_a_part_that_weighs_nothing_changes_nothing() -> None:
    out, lse = random(2, 3, 5, 8), random(2, 3, 5, seed=1)
    nothing, no_weight = torch.zeros(2, 3, 5, 8), torch.full((2, 3, 5), -math.inf)
    for merged in (merge(out, lse, nothing, no_weight), merge(nothing, no_weight, out, lse)):
        torch.testing.assert_close(merged, (out, lse))


def test_large_and_distant_scores_merge_without_overflow() -> None:
    out, other = torch.full((1, 4), 2.0), torch.full((1, 4), 5.0)
    merged, lse = merge(out, torch.tensor([3e4]), other, torch.tensor([-3e4]))
    assert torch.equal(merged, out)
    assert lse.tolist() == [3e4]


def test_a_log_sum_exp_of_any_stride_is_read_right() -> None:
    out, other = random(3, 7, 4), random(3, 7, 4, seed=1)
    lse, other_lse = random(7, 3, seed=2).t(), random(3, 14, seed=3)[:, ::2]
    assert not lse.is_contiguous()
    expected = merge(out, lse.contiguous(), other, other_lse.contiguous())
    torch.testing.assert_close(merge(out, lse, other, other_lse), expected)


def test_on_this_machine_the_fused_kernel_is_right() -> None:
    assert is_correct(plain_attention)
    assert choose_backend(CPU) is flash_cpu_attention


def test_the_self_test_finds_a_log_sum_exp_of_base_2() -> None:
    def base_2(*args: torch.Tensor, **how: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = plain_attention(*args, **how)  # type: ignore[arg-type]
        return out, lse / math.log(2)

    assert not is_correct(base_2)


@pytest.mark.parametrize("ignored", ["mask", "is_causal", "scale"])
def test_the_self_test_finds_a_kernel_that_ignores_what_it_is_told(ignored: str) -> None:
    def deaf(*args: torch.Tensor, **how: object) -> tuple[torch.Tensor, torch.Tensor]:
        defaults = {"mask": None, "is_causal": False, "scale": 1.0}
        return plain_attention(*args, **how | {ignored: defaults[ignored]})  # type: ignore[arg-type]

    assert not is_correct(deaf)


def test_nothing_to_attend_to_kills_no_process() -> None:
    """The kernel itself dies of zero tokens: a child process shows that none of these reaches it."""
    script = """
import torch
from tests.workers.engine.driving import Driver, assert_like_oracle
from tests.workers.engine.tiny import tiny_modules
from workers.engine.attention import flash_cpu_attention

try:
    flash_cpu_attention(torch.ones(1, 2, 1, 16), torch.ones(1, 2, 0, 16), torch.ones(1, 2, 0, 16), scale=1.0)
except ValueError as error:
    print(error)

# No cache, empty tails, a seat that has ended between two that go on: a row of nothing but hidden tokens.
driver = Driver(*tiny_modules("llama"))
with driver.standing_still():
    answers = [driver.ask([token], max_output_tokens=count) for token, count in ((5, 9), (6, 2), (7, 9), (8, 1))]
print(*[answer.outcome[0] for answer in answers])
for answer in answers:
    assert_like_oracle(driver.oracle, answer)
driver.close()
"""
    child = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == [
        "attention over zero tokens",
        "MAX_TOKENS MAX_TOKENS MAX_TOKENS MAX_TOKENS",
    ]
