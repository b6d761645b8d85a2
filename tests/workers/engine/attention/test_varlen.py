"""Tails are handed to torch's varlen_attn where they lie, and nothing of what is unused is read."""

import math
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from tests.fakes.varlen_attn import varlen_attn
from tests.workers.engine.attention.textbook import assert_close, random, textbook
from workers.engine.attention import Lengths
from workers.engine.attention.varlen import find_spans, lies_in_rows, public_varlen_attn, tail_kernel

CPU = torch.device("cpu")
attend = tail_kernel(lambda: varlen_attn)


def tails(count: int, *, seats: int, kv_heads: int = 2, tokens: int = 40) -> torch.Tensor:
    """Keys and values [2, seats, kv heads, tokens, 16] of the first so many seats, each with room for 64 tokens."""
    return random(2, seats + 2, kv_heads, 64, 16)[:, :count, :, :tokens]


@pytest.mark.parametrize("counts", [(5, 1, 40, 17), (40, 40), (1,), (33, 2, 9)])
@pytest.mark.parametrize(("kv_heads", "heads", "rows"), [(2, 2, 3), (1, 1, 1), (2, 6, 1), (3, 6, 2)])
def test_each_tail_is_seen_as_far_as_it_is_filled(
    counts: tuple[int, ...], kv_heads: int, heads: int, rows: int
) -> None:
    slabs = tails(len(counts), seats=8, kv_heads=kv_heads)
    query = random(len(counts), heads, rows, 16, seed=1)
    part = attend(query, slabs[0], slabs[1], 0.25, Lengths(counts, CPU))
    assert_close(part, textbook(query, *slabs, scale=0.25, counts=counts), out=1e-5, lse=1e-5)


def test_what_is_unused_may_be_no_number() -> None:
    slabs, counts = tails(3, seats=3), (5, 40, 1)
    query = random(3, 2, 3, 16, seed=1)
    expected = textbook(query, *slabs, scale=0.25, counts=counts)
    for entry, count in enumerate(counts):
        slabs[:, entry, :, count:] = math.nan
    assert_close(attend(query, slabs[0], slabs[1], 0.25, Lengths(counts, CPU)), expected, out=1e-5, lse=1e-5)


def test_keys_are_read_in_place() -> None:
    seen: list[int] = []

    def watched(*args: torch.Tensor, **how: float) -> tuple[torch.Tensor, torch.Tensor]:
        seen.extend(each.data_ptr() for each in args[1:3])
        return varlen_attn(*args, **how)  # type: ignore[arg-type]

    slabs = tails(3, seats=3)
    tail_kernel(lambda: watched)(random(3, 2, 3, 16), slabs[0], slabs[1], 0.25, Lengths((5, 40, 1), CPU))
    assert seen == [each.data_ptr() for each in slabs]


def test_sequences_and_the_gaps_between_them() -> None:
    key = tails(2, seats=2)[0]
    spans = find_spans(Lengths((5, 40), CPU), key, query_rows=3)
    assert spans.keys.tolist() == [0, 5, 64, 69, 128, 168, 192, 232]
    assert spans.queries.tolist() == [0, 3, 3, 6, 6, 9, 9, 12]
    assert (spans.longest, spans.row_count) == (59, 232)


def test_spans_are_worked_out_once_for_all_layers() -> None:
    lengths, slabs = Lengths((5, 1), CPU), tails(2, seats=4)
    asked: list[torch.Tensor] = []

    def watched(*args: torch.Tensor, **how: float) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(args[4])
        return varlen_attn(*args, **how)  # type: ignore[arg-type]

    for _ in range(2):
        tail_kernel(lambda: watched)(random(2, 2, 3, 16), slabs[0], slabs[1], 0.25, lengths)
    assert asked[0] is asked[1]


@pytest.mark.parametrize("arrangement", ["tokens first", "expanded", "keys and values apart"])
def test_keys_that_do_not_lie_in_rows_are_copied_first(arrangement: str) -> None:
    key, value = tails(3, seats=3)
    if arrangement == "tokens first":
        key, value = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (key, value))
    elif arrangement == "expanded":
        key, value = key[:1].expand(3, -1, -1, -1), value[:1].expand(3, -1, -1, -1)
    else:
        value = value.contiguous()
    assert lies_in_rows(key) is (arrangement == "keys and values apart")
    query, counts = random(3, 2, 3, 16, seed=1), (5, 40, 1)
    part = attend(query, key, value, 0.25, Lengths(counts, CPU))
    assert_close(part, textbook(query, key, value, scale=0.25, counts=counts), out=1e-5, lse=1e-5)


def test_the_call_fits_the_function_of_this_torch() -> None:
    """On tensors without numbers: torch checks names, types and shapes."""
    slabs = tails(3, seats=3).to("meta", torch.bfloat16)
    query = torch.empty(3, 2, 3, 16, dtype=torch.bfloat16, device="meta")
    out, lse = tail_kernel(public_varlen_attn)(query, slabs[0], slabs[1], 0.25, Lengths((5, 40, 1), CPU))
    assert out.shape == query.shape
    assert lse.shape == query.shape[:3]


def without_scale(query: torch.Tensor, *, return_aux: object = None) -> torch.Tensor:
    raise AssertionError("never called")


def without_log_sum_exp(query: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (without_scale, "has no scale"),
        (without_log_sum_exp, "has no return_aux"),
        (None, "has no varlen_attn"),
    ],
)
def test_a_torch_whose_function_does_not_do_is_named(
    function: Callable[..., torch.Tensor] | None, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = None if function is None else ModuleType("torch.nn.attention.varlen")
    if module is not None:
        monkeypatch.setattr(module, "varlen_attn", function, raising=False)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    public_varlen_attn.cache_clear()
    with pytest.raises(NotImplementedError, match=missing):
        public_varlen_attn()
