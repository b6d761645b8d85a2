"""Is a kernel right on this device? Each is compared with plain torch before it is used, in what its role will ask of it.

Keys and values are slices of larger slabs, as they are in a step, and what is not visible holds numbers too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from workers.engine.attention.contract import Lengths, Part, PartialAttention, Role
from workers.engine.attention.merging import merge
from workers.engine.attention.plain import plain_attention

_KV_HEADS, _GROUPS = 2, 3
# Largest error of out and of the log-sum-exp, for scores of some units. A logarithm of another base, or a mask or scale that
# is ignored, differs by tenths.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    lengths: Lengths | None = None
    is_causal: bool = False

    def ask(self, attend: PartialAttention) -> Part:
        scale = self.query.shape[-1] ** -0.5
        return attend(
            self.query, self.key, self.value, scale=scale, lengths=self.lengths, is_causal=self.is_causal
        )


class Cases:
    """Random cases of one device, dtype and head size."""

    def __init__(self, device: torch.device, dtype: torch.dtype, head_size: int) -> None:
        self._device, self._dtype, self._size = device, dtype, head_size
        self._generator = torch.Generator().manual_seed(0)

    def of(self, role: Role) -> Iterator[Case]:
        if role is Role.SHARED:
            yield self.shared("a long part with few rows", 3, 1000)
            yield self.shared("a part of one token", 3, 1)
            yield self.shared("rows of many requests", 100, 130)
            yield self.shared("rows of a chunk", 200, 65)
            yield self.shared("an empty part", 3, 0)
            yield Case("a part under grouped heads", self.packed(40)[:, :, 3:20], *self.slab(90))
        elif role is Role.OWN:
            for tokens in (1, 37, 130):
                yield self.own(f"{tokens} tokens over themselves", tokens)
        else:
            yield self.tails("ragged tails", (1, 17, 40, 25, 33))
            yield self.tails("one tail", (40,))
            yield self.tails("tails that are empty", (0, 17, 0, 40, 0))
            yield self.tails("nothing but an empty tail", (0,))

    def shared(self, name: str, rows: int, tokens: int) -> Case:
        return Case(name, self.random(1, _KV_HEADS, rows, self._size), *self.slab(tokens))

    def own(self, name: str, tokens: int) -> Case:
        span = slice(5, 5 + tokens)
        query, key, value = (self.packed(tokens + 9, groups) for groups in (_GROUPS, 1, 1))
        return Case(name, query[:, :, span], key[:, :, span], value[:, :, span], is_causal=True)

    def tails(self, name: str, counts: tuple[int, ...]) -> Case:
        """Of seats with room for 64 tokens, of which 40 are looked at."""
        slabs = self.random(2, len(counts) + 2, _KV_HEADS, 64, self._size)[:, : len(counts), :, :40]
        query = self.random(len(counts), _KV_HEADS, _GROUPS, self._size)
        return Case(name, query, slabs[0], slabs[1], Lengths(counts, self._device))

    def slab(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a run: [1, kv heads, tokens, size]."""
        slabs = self.random(2, 1, _KV_HEADS, tokens + 200, self._size)[:, :, :, 130 : 130 + tokens]
        return slabs[0], slabs[1]

    def packed(self, tokens: int, groups: int = _GROUPS) -> torch.Tensor:
        """[1, heads, tokens, size], where the heads of a token lie together: what a projection gives."""
        return self.random(1, tokens, _KV_HEADS * groups, self._size).transpose(1, 2)

    def random(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._generator).to(self._device, self._dtype)


def find_fault(attend: PartialAttention, role: Role, cases: Cases) -> str | None:
    """What is wrong with this attention in this role, None where nothing is."""
    case = None
    try:
        for case in cases.of(role):
            if not _agree(case.ask(attend), case.ask(plain_attention)):
                return f"differs from plain torch in {case.name}"
    except Exception as error:  # noqa: BLE001 - whatever a kernel does not like is a reason not to use it
        where = case.name if case else "making its case"
        return f"fails in {where}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def find_fault_in_merge(attend: PartialAttention, cases: Cases) -> str | None:
    """A long prefix, a short suffix and nothing at all, merged, against one softmax over everything."""
    suffix, (key, value) = cases.own("", 5), cases.slab(1000)
    whole_key, whole_value = torch.cat([key, suffix.key], dim=2), torch.cat([value, suffix.value], dim=2)
    prefix = Case("", suffix.query, key, value)
    nothing = Case("", suffix.query, key[:, :, :0], value[:, :, :0])
    try:
        merged = _float(nothing.ask(attend))
        for part in (nothing, suffix, prefix, nothing):
            merged = merge(*merged, *_float(part.ask(attend)))
        for row in (0, 4):
            seen, one = slice(0, 1000 + row + 1), slice(row, row + 1)
            whole = Case("", suffix.query[:, :, one], whole_key[:, :, seen], whole_value[:, :, seen])
            if not _agree((merged[0][:, :, one], merged[1][:, :, one]), whole.ask(plain_attention)):
                return "gives parts that do not merge to the whole"
    except Exception as error:  # noqa: BLE001 - as above
        return f"fails in merging: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def _agree(actual: Part, expected: Part) -> bool:
    """Same shapes, log-sum-exp in float32, and every number within what the dtype explains; a NaN agrees with nothing."""
    tolerance = _TOLERANCE[expected[0].dtype]
    return (
        actual[0].shape == expected[0].shape
        and actual[1].shape == expected[1].shape
        and actual[1].dtype == torch.float32
        and torch.allclose(actual[0].float(), expected[0].float(), rtol=0, atol=tolerance)
        and torch.allclose(actual[1], expected[1], rtol=0, atol=tolerance)
    )


def _float(part: Part) -> Part:
    return part[0].float(), part[1]
