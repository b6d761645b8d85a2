"""What torch's attention ops for CUDA answer, computed on a CPU: with their padding, their many outputs and their limits.

Test double of aten._scaled_dot_product_flash_attention and aten._scaled_dot_product_efficient_attention.
"""

import math

import torch
from torch.nn import functional

from workers.engine.attention import Part, plain_attention


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float,
) -> tuple[torch.Tensor | int | None, ...]:
    """float16 and bfloat16, heads in groups; the log-sum-exp padded to 128 rows, as older versions do."""
    if query.dtype == torch.float32 or query.shape[-1] % 8:
        raise RuntimeError("FlashAttention does not do this")
    assert (dropout_p, return_debug_mask) == (0.0, False)
    out, lse = _computed(query, key, value, is_causal=is_causal, scale=scale, multiple=128)
    return out, lse, None, None, query.shape[2], key.shape[2], torch.zeros(2), torch.zeros(()), torch.zeros(0)


def efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """Any format; as many KV heads as query heads; the log-sum-exp padded to 32 rows."""
    if query.shape[1] != key.shape[1]:
        raise RuntimeError("heads differ")
    assert (attn_bias, compute_log_sumexp, dropout_p) == (None, True, 0.0)
    out, lse = _computed(query, key, value, is_causal=is_causal, scale=scale, multiple=32)
    return out, lse, torch.zeros(()), torch.zeros(())


def _computed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    is_causal: bool,
    scale: float,
    multiple: int,
) -> Part:
    assert key.shape[2], "the wrapper keeps empty parts away"
    assert all(each.stride(-1) == 1 for each in (query, key, value))
    out, lse = plain_attention(query, key, value, scale=scale, is_causal=is_causal)
    return out, functional.pad(lse, (0, -query.shape[2] % multiple), value=math.nan)
