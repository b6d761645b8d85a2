"""Kernels for CPUs.

torch's fused kernel reads strided K and V in place. In bfloat16, on a processor that computes it, two matrix products with a
softmax between them are faster while rows are few.
"""

import torch

from workers.engine.attention.contract import Kernel, Lengths, Part, Role, TailKernel, adjacent, folded

# The public function gives no log-sum-exp; without it parts cannot be merged.
_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001

# Query rows a KV head, at most, and the dtype of the softmax between two products; above them the fused kernel. Measured in
# bfloat16 behind 7,900 tokens (docs/perf-log.md): of 3 to 42 rows float32 is as fast as any and exact, of 96 its scores leave
# the processor's cache and bfloat16's do not.
_SOFTMAX_BY_ROWS = ((64, torch.float32), (128, torch.bfloat16))


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    out, lse = _fused(*adjacent(query, key, value), 0.0, False, scale=scale)
    return out, lse


def fused_causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    out, lse = _fused(*adjacent(query, key, value), 0.0, True, scale=scale)
    return out, lse


def fused_masked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, lengths: Lengths
) -> Part:
    mask = lengths.mask(query.dtype, key.shape[2]).expand(-1, *query.shape[1:3], -1)
    out, lse = _fused(*adjacent(query, key, value), 0.0, False, attn_mask=mask, scale=scale)
    return out, lse


def by_rows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    """The kernel that is fastest for this many rows, in bfloat16."""
    batch, heads, rows, _ = query.shape
    if batch == 1:
        for most, dtype in _SOFTMAX_BY_ROWS:
            if heads * rows <= most * key.shape[1]:
                return two_products(query, key, value, scale, dtype)
    return fused(query, key, value, scale)


def two_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, softmax_dtype: torch.dtype
) -> Part:
    """Scores, softmax, weighted sum, for a batch of one. The log-sum-exp comes for free: max - log(softmax at the max)."""
    kv_heads, tokens = key.shape[1:3]
    scaled = folded(query * scale, kv_heads)[0]
    scores = scaled.new_empty((*scaled.shape[:2], tokens))
    # One product a head: over all of them at once, strided slabs would be copied.
    for head in range(kv_heads):
        torch.mm(scaled[head], key[0, head].t(), out=scores[head])
    weights = torch.softmax(scores, dim=-1, dtype=softmax_dtype)
    lse = scores.amax(-1).float() - weights.amax(-1).float().log()
    weights = weights.to(value.dtype)
    out = torch.empty_like(scaled)
    for head in range(kv_heads):
        torch.mm(weights[head], value[0, head], out=out[head])
    return out.view(query.shape), lse.view(query.shape[:3])


def cpu_kernels(dtype: torch.dtype) -> list[tuple[Role, str, Kernel | TailKernel]]:
    """What is fastest, by role and name. In float32 with AVX2 the fused kernel was, at every shape (docs/perf-log.md)."""
    shared: Kernel = by_rows if dtype == torch.bfloat16 else fused
    name = "by rows" if dtype == torch.bfloat16 else "fused"
    return [
        (Role.SHARED, name, shared),
        (Role.OWN, "fused", fused_causal),
        (Role.TAILS, "fused", fused_masked),
    ]
