"""A varlen_attn for CPUs, where torch has none: sequences one after the other, with the marks of the kernel behind torch's.

Test double of torch.nn.attention.varlen.varlen_attn, which runs on CUDA only.
"""

import itertools
import math

import torch

from workers.engine.attention import Part


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
) -> Part:
    """query [T, heads, size]; key, value [T, heads, size]. A row of a sequence without keys gets a log-sum-exp of +inf."""
    assert query.shape[1] == key.shape[1] == value.shape[1]
    out, lse = torch.full_like(query, math.nan), torch.full(query.shape[:2], math.nan).t().contiguous()
    for each, longest in ((cu_seq_q, max_q), (cu_seq_k, max_k)):
        assert each.dtype == torch.int32
        assert each.is_contiguous()
        assert each[0] == 0
        assert 0 <= int(each.diff().min()) <= int(each.diff().max()) <= longest
    assert len(query) == cu_seq_q[-1]
    assert len(key) >= cu_seq_k[-1]
    borders = list(zip(cu_seq_q.tolist(), cu_seq_k.tolist(), strict=True))
    for (q, k), (q_end, k_end) in itertools.pairwise(borders):
        scores = torch.einsum("qhs,khs->hqk", query[q:q_end].float(), key[k:k_end].float()) * scale
        lse[:, q:q_end] = scores.logsumexp(-1) if k_end > k else math.inf
        out[q:q_end] = torch.einsum("hqk,khs->qhs", scores.softmax(-1), value[k:k_end].float()).to(out.dtype)
    return out, lse
