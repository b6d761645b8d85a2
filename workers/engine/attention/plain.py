"""Plain torch: the oracle that kernels are compared with, and what runs where none of them is right."""

import math

import torch

from workers.engine.attention.contract import Backend, Lengths, Part, folded


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    lengths: Lengths | None = None,
    is_causal: bool = False,
) -> Part:
    """Keeps the contract of PartialAttention by itself: scores, log-sum-exp and weights written out in float32."""
    kv_heads, tokens = key.shape[1:3]
    batch, heads, rows, size = query.shape
    scores = torch.matmul(folded(query.float(), kv_heads), key.float().transpose(-1, -2)) * scale
    if lengths is not None:
        scores = scores + lengths.mask(torch.float32, tokens)
    if is_causal:
        later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
        by_row = scores.view(batch, kv_heads, heads // kv_heads, rows, tokens)
        scores = by_row.masked_fill(later, -math.inf).view(scores.shape)
    lse = torch.logsumexp(scores, dim=-1)
    # exp(-inf less -inf) would be no number, where a row sees nothing
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1))
    out = torch.matmul(weights, value.float()).to(query.dtype)
    return out.reshape(batch, heads, rows, size), lse.reshape(batch, heads, rows)


def _shared(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    return plain_attention(query, key, value, scale=scale)


def _own(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    return plain_attention(query, key, value, scale=scale, is_causal=True)


def _tails(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, lengths: Lengths
) -> Part:
    return plain_attention(query, key, value, scale=scale, lengths=lengths)


PLAIN = Backend("plain", _shared, _own, _tails)
