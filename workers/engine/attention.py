"""Attention over parts of a context, and the merge of the parts.

Every partial result carries its log-sum-exp in natural log, float32. Parts over disjoint keys merge exactly
(ChunkAttention, arXiv 2402.15220; Hydragen, arXiv 2402.05099). Two backends compute a part: plain torch, the oracle, for any
device; and torch's flash kernel for CPUs, which reads strided K and V in place.
"""

import math
from typing import Protocol

import torch

# The public function gives no log-sum-exp; without it parts cannot be merged.
_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001


class PartialAttention(Protocol):
    """Attention of queries over one part of their keys.

    query [batch, heads, rows, size]; key, value [batch, kv heads, tokens, size], heads a multiple of kv heads and grouped
    by it; mask additive, broadcastable to [batch, heads, rows, tokens]; is_causal means rows = tokens, row i sees tokens
    up to i. Returns out [batch, heads, rows, size] in the query's dtype and lse [batch, heads, rows] in float32. tokens
    must not be 0. A row that sees no token has no defined result: callers leave such rows out.
    """

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle: scores, log-sum-exp and weights written out in float32."""
    groups = query.shape[1] // key.shape[1]
    key = key.float().repeat_interleave(groups, dim=1)
    value = value.float().repeat_interleave(groups, dim=1)
    scores = torch.matmul(query.float(), key.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask.float()
    if is_causal:
        rows = query.shape[2]
        later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.matmul(torch.exp(scores - lse.unsqueeze(-1)), value)
    return out.to(query.dtype), lse


def flash_cpu_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's fused CPU kernel.

    It kills the process on zero tokens, and reads something else where the numbers of a row do not lie side by side.
    """
    if key.shape[2] == 0:
        raise ValueError("attention over zero tokens")
    query, key, value = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key, value))
    out, lse = _flash_cpu(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
    return out, lse


def merge(
    out: torch.Tensor, lse: torch.Tensor, other_out: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge two parts over disjoint keys; out [..., size] and lse [...] of equal leading shapes, float32.

    The other's share of the whole, exp(other_lse) / (exp(lse) + exp(other_lse)), is a sigmoid: four small operations, where
    a step has two thousand. A part of lse = -inf weighs nothing; two such parts have no defined result.
    """
    share = torch.sigmoid(other_lse - lse)
    return torch.lerp(out, other_out, share.unsqueeze(-1)), torch.logaddexp(lse, other_lse)


def choose_backend(device: torch.device) -> PartialAttention:
    """The fused kernel where it is right on this machine, proved by a self-test; else plain torch."""
    if device.type == "cpu" and is_correct(flash_cpu_attention):
        return flash_cpu_attention
    return plain_attention


def is_correct(backend: PartialAttention) -> bool:
    """Compare a backend with the oracle on a long part with few rows, a causal part and a masked ragged batch."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    mask = torch.zeros(3, 1, 1, 40)
    mask[0, ..., 1:] = mask[1, ..., 17:] = -math.inf
    cases = [
        (random(1, 2, 3, 64), random(1, 2, 1500, 64), random(1, 2, 1500, 64), None, False),
        (random(1, 6, 37, 64), random(1, 2, 37, 64), random(1, 2, 37, 64), None, True),
        (random(3, 2, 3, 64), random(3, 2, 40, 64), random(3, 2, 40, 64), mask.expand(3, 2, 3, 40), False),
    ]
    for query, key, value, case_mask, is_causal in cases:
        expected = plain_attention(query, key, value, scale=0.125, mask=case_mask, is_causal=is_causal)
        actual = backend(query, key, value, scale=0.125, mask=case_mask, is_causal=is_causal)
        if not all(torch.allclose(a, b, atol=1e-4) for a, b in zip(actual, expected, strict=True)):
            return False
    return True
