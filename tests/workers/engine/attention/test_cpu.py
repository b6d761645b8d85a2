"""Which kernel computes a shared part in bfloat16, by the rows that ask."""

import pytest
import torch

from tests.workers.engine.attention.textbook import assert_close, random, textbook
from workers.engine.attention import cpu
from workers.engine.attention.contract import Part, Role


@pytest.mark.parametrize(
    ("batch", "heads", "rows", "expected"),
    [
        (1, 3, 1, torch.float32),
        (1, 9, 21, torch.float32),  # groups of three: 63 rows a KV head
        (1, 3, 64, torch.float32),
        (1, 9, 22, torch.bfloat16),
        (1, 3, 128, torch.bfloat16),
        (1, 3, 129, None),
        (2, 3, 1, None),
    ],
)
def test_few_rows_take_two_products_and_many_the_fused_kernel(
    batch: int, heads: int, rows: int, expected: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[torch.dtype | None] = []

    def two_products(query: torch.Tensor, *args: object) -> Part:
        taken.append(args[-1])  # type: ignore[arg-type]
        return query, query

    def fused(query: torch.Tensor, *_: object) -> Part:
        taken.append(None)
        return query, query

    monkeypatch.setattr(cpu, "two_products", two_products)
    monkeypatch.setattr(cpu, "fused", fused)
    key = random(batch, 3, 10, 16)
    cpu.by_rows(random(batch, heads, rows, 16), key, key, 0.25)
    assert taken == [expected]


@pytest.mark.parametrize(
    ("softmax", "out", "lse"), [(torch.float32, 1e-2, 2e-3), (torch.bfloat16, 2e-2, 1e-2)]
)
def test_two_products_are_as_exact_as_their_softmax(softmax: torch.dtype, out: float, lse: float) -> None:
    query = random(1, 6, 5, 64).bfloat16()
    key, value = (random(2, 1000, 64, seed=seed).bfloat16()[None, :, 100:900] for seed in (1, 2))
    part = cpu.two_products(query, key, value, 0.125, softmax)
    assert_close(part, textbook(query, key, value, scale=0.125), out=out, lse=lse)


def test_float32_takes_the_fused_kernel_whatever_the_rows() -> None:
    kernels = {role: kernel for role, _, kernel in cpu.cpu_kernels(torch.float32)}
    assert kernels[Role.SHARED] is cpu.fused
    assert {role: kernel for role, _, kernel in cpu.cpu_kernels(torch.bfloat16)}[Role.SHARED] is cpu.by_rows
