"""Kernels for CUDA: those behind torch's public attention, which alone give a log-sum-exp.

Which of them a device, a number format and a head size have is not decided here: the test at start finds out.
"""

import torch

from workers.engine.attention.contract import Kernel, Part, Role, TailKernel, adjacent, folded
from workers.engine.attention.varlen import varlen

# FlashAttention: float16 and bfloat16, head sizes of a multiple of 8 up to 256, from Ampere on; grouped heads as they are.
_flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
# CUTLASS: float32 too, and older devices; as many KV heads as query heads.
_efficient = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    """Few rows before many tokens: it splits the tokens among the processors by itself."""
    out, lse, *_ = _flash(*adjacent(query, key, value), 0.0, False, False, scale=scale)
    return out, _unpadded(lse, query)


def flash_causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    out, lse, *_ = _flash(*adjacent(query, key, value), 0.0, True, False, scale=scale)
    return out, _unpadded(lse, query)


def efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    by_kv_head = folded(query, key.shape[1])
    out, lse, *_ = _efficient(*adjacent(by_kv_head, key, value), None, True, 0.0, False, scale=scale)
    return out.reshape(query.shape), _unpadded(lse, by_kv_head).reshape(query.shape[:3])


def efficient_causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
    groups = query.shape[1] // key.shape[1]
    # Folded rows would not be causal; the new tokens of one request are few enough to be copied.
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    out, lse, *_ = _efficient(*adjacent(query, key, value), None, True, 0.0, True, scale=scale)
    return out, _unpadded(lse, query)


def _unpadded(lse: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Some versions round the rows of the log-sum-exp up, to 32 or 128."""
    return lse[..., : query.shape[2]]


def cuda_kernels(dtype: torch.dtype) -> list[tuple[Role, str, Kernel | TailKernel]]:
    """By role and name, the fastest first. What has none that is right is left to plain torch."""
    any_dtype: list[tuple[Role, str, Kernel | TailKernel]] = [
        (Role.SHARED, "efficient", efficient),
        (Role.OWN, "efficient", efficient_causal),
    ]
    if dtype == torch.float32:
        return any_dtype
    return [
        (Role.SHARED, "flash", flash),
        (Role.OWN, "flash", flash_causal),
        (Role.TAILS, "varlen", varlen),
        *any_dtype,
    ]
