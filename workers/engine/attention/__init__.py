"""Attention over parts of a context, and the merge of the parts.

Parts over disjoint keys merge exactly where each gives its log-sum-exp (ChunkAttention, arXiv 2402.15220; Hydragen,
arXiv 2402.05099). `contract` says what a backend promises, `plain` is the oracle, `cpu`, `cuda` and `varlen` hold the kernels,
`proving` tests them at start, `choice` takes those that pass.
"""

from workers.engine.attention.choice import choose_backend
from workers.engine.attention.contract import Lengths, Part, PartialAttention
from workers.engine.attention.merging import merge
from workers.engine.attention.plain import plain_attention

__all__ = ["Lengths", "Part", "PartialAttention", "choose_backend", "merge", "plain_attention"]
