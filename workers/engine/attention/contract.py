"""What attention over a part of the keys promises, and the wrapper that makes a device's kernels keep it.

A backend has a kernel for each role, for no fused kernel is right, or fast, in all of them:

    shared  queries of any number of requests over a run that they see whole
    own     the new tokens of one request over themselves, causally
    tails   the newest token of each request over its own tail, all in one ragged batch
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeVar

import torch

# out [batch, heads, rows, size] in the query's dtype; lse [batch, heads, rows] in float32, natural logarithm.
Part = tuple[torch.Tensor, torch.Tensor]
# query, key, value, scale; with at least one token. Whether it is causal is the kernel's own matter.
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], Part]
Made = TypeVar("Made")


class Role(StrEnum):
    SHARED = "shared"
    OWN = "own"
    TAILS = "tails"


class Lengths:
    """How many tokens each entry of a batch sees: the first so many, 0 too.

    Made once a step from plain numbers, so that nothing needs to be read back from a device. What a kernel works out from
    them is kept for the layers that follow.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.counts = tuple(counts)
        self.has_empty = 0 in self.counts
        self._device = device
        self._made: dict[Hashable, object] = {}

    def mask(self, dtype: torch.dtype, tokens: int) -> torch.Tensor:
        """Additive, [batch, 1, 1, tokens]: -inf over what an entry does not see."""

        def make() -> torch.Tensor:
            hidden = torch.arange(tokens, device=self._device) >= self.tensor().unsqueeze(1)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill(hidden, -math.inf)
            return mask[:, None, None, :]

        return self.once((dtype, tokens), make)

    def tensor(self) -> torch.Tensor:
        """The counts on the device, [batch]."""
        return self.once("tensor", lambda: torch.tensor(self.counts, dtype=torch.long, device=self._device))

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, made at the first call with this key."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]  # type: ignore[assignment]  # whoever chose the key chose the type
        return made

    def blank_empty(self, part: Part) -> Part:
        """Entries that see nothing give 0 and -inf; kernels give them 0 or +inf, each its own."""
        if not self.has_empty:
            return part
        is_empty = self.once("is_empty", lambda: (self.tensor() == 0)[:, None, None])
        return part[0].masked_fill(is_empty.unsqueeze(-1), 0), part[1].masked_fill(is_empty, -math.inf)


TailKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, Lengths], Part]


class PartialAttention(Protocol):
    """Attention of queries over one part of their keys.

    query [batch, heads, rows, size]; key, value [batch, kv heads, tokens, size], heads a multiple of kv heads and grouped
    by it; any of them may be a strided view. lengths: how many of the tokens each entry of the batch sees. is_causal: rows =
    tokens, row i sees tokens up to i; never together with lengths. A row that sees no token, also for want of any, gives
    out 0 and lse -inf.
    """

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        lengths: Lengths | None = None,
        is_causal: bool = False,
    ) -> Part: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A kernel for each role, kept to the contract of PartialAttention. name: of its kernels."""

    name: str
    shared: Kernel
    own: Kernel
    tails: TailKernel

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        lengths: Lengths | None = None,
        is_causal: bool = False,
    ) -> Part:
        if key.shape[2] == 0:  # torch's kernel for CPUs kills the process, that for CUDA reports +inf
            return nothing_seen(query)
        if lengths is not None:
            return lengths.blank_empty(self.tails(query, key, value, scale, lengths))
        return (self.own if is_causal else self.shared)(query, key, value, scale)

    def taking(self, role: Role, kernel: Kernel | TailKernel) -> "Backend":
        """The same with this kernel, which must be one for this role."""
        return replace(self, **{role.value: kernel})  # type: ignore[arg-type]  # mypy knows no field by its value


def nothing_seen(query: torch.Tensor) -> Part:
    """The part of queries that see no token: it weighs nothing in a merge."""
    lse = torch.full(query.shape[:3], -math.inf, dtype=torch.float32, device=query.device)
    return torch.zeros_like(query), lse


def folded(query: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """All query rows that read a KV head, as one axis: [batch, kv heads, groups x rows, size]."""
    return query.reshape(query.shape[0], kv_heads, -1, query.shape[-1])


def adjacent(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same, copied where the numbers of a row do not lie side by side: kernels refuse that, or read something else."""
    return tuple(each if each.stride(-1) == 1 else each.contiguous() for each in tensors)
