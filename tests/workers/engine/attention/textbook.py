"""Attention as a textbook has it, row by row in float64: what every backend must agree with. And where its parts come from."""

import math

import torch

from workers.engine.attention import Part


def random(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def textbook(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    counts: tuple[int, ...] | None = None,
    is_causal: bool = False,
) -> Part:
    """counts: of visible tokens, for each entry of the batch. Returns out and lse in float64; 0 and -inf where a row sees none."""
    groups = query.shape[1] // key.shape[1]
    out = torch.zeros(query.shape, dtype=torch.float64)
    lse = torch.full(query.shape[:3], -math.inf, dtype=torch.float64)
    for entry, head, row in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        visible = key.shape[2] if counts is None else counts[entry]
        seen = slice(0, row + 1 if is_causal else visible)
        keys, values = (each[entry, head // groups, seen].double().cpu() for each in (key, value))
        if len(keys):
            scores = keys @ query[entry, head, row].double().cpu() * scale
            lse[entry, head, row] = scores.logsumexp(0)
            out[entry, head, row] = scores.softmax(0) @ values
    return out, lse


def assert_close(actual: Part, expected: Part, *, out: float, lse: float) -> None:
    """Within so much, absolutely; both shapes, and the log-sum-exp in float32."""
    assert actual[1].dtype == torch.float32
    torch.testing.assert_close(actual[0].double().cpu(), expected[0], atol=out, rtol=0)
    torch.testing.assert_close(actual[1].double().cpu(), expected[1], atol=lse, rtol=0)
