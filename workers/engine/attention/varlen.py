"""Tails on CUDA: torch's public varlen_attn over tails of different lengths, read where they lie.

Only what its first usable version takes is asked of it: no grouped heads, no used lengths, no table of blocks. Each KV head
of each tail is a sequence of its own, with one head, and the unused rest of its slab is one more, which no query reads:

    keys     | head 0 of seat 0 | unused | head 1 of seat 0 | unused | head 0 of seat 1 | ...
    queries  | its rows         | none   | its rows         | none   | its rows         | ...
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch

from workers.engine.attention.contract import Lengths, Part, TailKernel, folded


@dataclass(frozen=True, slots=True)
class Spans:
    """Where sequences begin and end, as the op wants it: cumulative, int32. row_count: rows of keys, used or not."""

    queries: torch.Tensor
    keys: torch.Tensor
    longest: int
    row_count: int


def tail_kernel(find_varlen_attn: Callable[[], Callable[..., Part]]) -> TailKernel:
    """The kernel for tails over a varlen_attn, which is looked for when it is needed."""

    def varlen(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, lengths: Lengths
    ) -> Part:
        if not lies_in_rows(key) or key.stride() != value.stride():
            key, value = key.contiguous(), value.contiguous()
        batch, kv_heads, _, size = key.shape
        rows = folded(query, kv_heads)
        count = rows.shape[2]
        spans = lengths.once((count, key.shape, key.stride()), lambda: find_spans(lengths, key, count))
        view = (spans.row_count, 1, size), (key.stride(2), size, 1)
        out, lse = find_varlen_attn()(
            rows.reshape(batch * kv_heads * count, 1, size),
            key.as_strided(*view),
            value.as_strided(*view),
            spans.queries,
            spans.keys,
            count,
            spans.longest,
            scale=scale,
        )
        # With one head it does not matter whether heads or tokens come first, of which torch says one and does the other.
        return out.reshape(query.shape), lse.reshape(query.shape[:3])

    return varlen


def lies_in_rows(key: torch.Tensor) -> bool:
    """Whether tokens, heads and entries of [batch, kv heads, tokens, size] follow each other in rows of one width."""
    batch, kv_heads, tokens, _ = key.shape
    entry, head, token, number = key.stride()
    return (
        number == 1
        and token > 0
        and entry % token == 0
        and head % token == 0
        and (kv_heads == 1 or head >= tokens * token)
        and (batch == 1 or entry >= (kv_heads - 1) * head + tokens * token)
    )


def find_spans(lengths: Lengths, key: torch.Tensor, query_rows: int) -> Spans:
    """Every used piece, and the unused one behind it; worked out here and sent to the device at once."""
    batch, kv_heads, tokens, _ = key.shape
    entry, head, token, _ = key.stride()
    first = torch.arange(batch).unsqueeze(1) * (entry // token) + torch.arange(kv_heads) * (head // token)
    used = torch.tensor(lengths.counts).unsqueeze(1).expand(-1, kv_heads)
    keys = torch.stack([first, first + used], dim=-1).flatten()
    heads = torch.arange(batch * kv_heads)
    queries = torch.stack([heads, heads + 1], dim=-1).flatten() * query_rows
    both = torch.stack([queries, keys]).to(key.device, torch.int32)
    return Spans(both[0], both[1], int(keys.diff().max()), int(first[-1, -1]) + tokens)


@cache
def public_varlen_attn() -> Callable[..., Part]:
    """torch's function. Raises NotImplementedError where this torch has none that takes a scale and gives a log-sum-exp."""
    try:  # younger than the oldest torch that is supported
        module = importlib.import_module("torch.nn.attention.varlen")
    except ImportError as error:
        raise NotImplementedError("this torch has no varlen_attn") from error
    missing = {"scale", "return_aux"} - inspect.signature(module.varlen_attn).parameters.keys()
    if missing:
        raise NotImplementedError(f"this torch's varlen_attn has no {' and no '.join(sorted(missing))}")
    return partial(module.varlen_attn, return_aux=module.AuxRequest(lse=True))


varlen = tail_kernel(public_varlen_attn)
