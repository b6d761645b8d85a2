"""The merge of two parts over disjoint keys."""

import torch

from workers.engine.attention.contract import Part


def merge(out: torch.Tensor, lse: torch.Tensor, other_out: torch.Tensor, other_lse: torch.Tensor) -> Part:
    """Merge the other part into out [..., size] and lse [...], float32, which are changed and returned.

    The other's share of the whole, exp(other_lse) / (exp(lse) + exp(other_lse)), is a sigmoid: few and small operations, where
    a step has two thousand. A part of lse = -inf weighs nothing, and two of them give 0 and -inf.
    """
    # -inf less -inf is no number; any share of two zeros is zero.
    share = (other_lse - lse).nan_to_num_(0.0).sigmoid_()
    return out.lerp_(other_out, share.unsqueeze(-1)), torch.logaddexp(lse, other_lse, out=lse)
