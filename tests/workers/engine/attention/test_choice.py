"""A kernel is used where it passes the test at start; what is wrong with one is noticed, and is in the log."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from workers.engine.attention import Part, choose_backend, cpu
from workers.engine.attention.choice import choose_among
from workers.engine.attention.contract import Kernel, Lengths, Role, TailKernel
from workers.engine.attention.plain import PLAIN
from workers.engine.attention.proving import Cases, find_fault, find_fault_in_merge

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
Changed = Callable[[Part], Part]


def spoiled(kernel: Kernel, change: Changed) -> Kernel:
    return lambda *args: change(kernel(*args))


def spoiled_tails(kernel: TailKernel, change: Changed) -> TailKernel:
    return lambda *args: change(kernel(*args))


def fault(role: Role, kernel: Kernel | TailKernel, dtype: torch.dtype = torch.float32) -> str | None:
    return find_fault(PLAIN.taking(role, kernel), role, Cases(CPU, dtype, 64))


def spoiled_role(role: Role, change: Changed) -> Kernel | TailKernel:
    kernels: dict[Role, Kernel | TailKernel] = {
        Role.SHARED: spoiled(PLAIN.shared, change),
        Role.OWN: spoiled(PLAIN.own, change),
        Role.TAILS: spoiled_tails(PLAIN.tails, change),
    }
    return kernels[role]


WRONG: dict[str, Changed] = {
    "log-sum-exp of base 2": lambda part: (part[0], part[1] / math.log(2)),
    "one row is no number": lambda part: (part[0].index_fill(2, torch.tensor([0]), math.nan), part[1]),
    "log-sum-exp in the query's format": lambda part: (part[0], part[1].half()),
    "log-sum-exp padded": lambda part: (part[0], torch.nn.functional.pad(part[1], (0, 7))),
    "another kernel's rows": lambda part: (part[0].flip(1), part[1]),
}


@pytest.mark.trap("T14")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_wrong_answers_are_noticed(role: Role, dtype: torch.dtype, change: Changed) -> None:
    assert "differs from plain torch in" in (fault(role, spoiled_role(role, change), dtype) or "")


@pytest.mark.parametrize("role", [Role.SHARED, Role.OWN])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_that_is_deaf_to_scale_or_order_is_noticed(role: Role, dtype: torch.dtype) -> None:
    right: Kernel = getattr(PLAIN, role)
    other = PLAIN.own if role is Role.SHARED else PLAIN.shared
    assert fault(role, right, dtype) is None
    assert fault(role, lambda query, key, value, _: right(query, key, value, 1.0), dtype)
    assert fault(role, other, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_that_is_deaf_to_lengths_is_noticed(dtype: torch.dtype) -> None:
    def deaf(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, _: Lengths) -> Part:
        return PLAIN.shared(query, key, value, scale)

    assert fault(Role.TAILS, PLAIN.tails, dtype) is None
    assert fault(Role.TAILS, deaf, dtype)


def test_a_kernel_that_reads_slices_as_if_they_were_whole_is_noticed() -> None:
    def flat(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
        key, value = (each.as_strided(each.shape, torch.empty(each.shape).stride()) for each in (key, value))
        return PLAIN.shared(query, key, value, scale)

    assert "a long part with few rows" in (fault(Role.SHARED, flat) or "")


def test_a_kernel_that_marks_empty_tails_otherwise_is_right_behind_the_wrapper() -> None:
    """As torch's do: 0 on CPUs, +inf on CUDA."""

    def marked(part: Part) -> Part:
        return part[0], part[1].masked_fill(part[1] == -math.inf, math.inf)

    assert fault(Role.TAILS, spoiled_role(Role.TAILS, marked)) is None


def test_parts_that_do_not_merge_are_noticed() -> None:
    assert find_fault_in_merge(PLAIN, Cases(CPU, torch.float32, 64)) is None
    shifted = replace(PLAIN, shared=spoiled(PLAIN.shared, lambda part: (part[0], part[1] + 0.1)))
    assert "do not merge" in (find_fault_in_merge(shifted, Cases(CPU, torch.float32, 64)) or "")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", [16, 64, 80, 128])
def test_on_this_machine_the_kernels_are_right(dtype: torch.dtype, head_size: int) -> None:
    chosen = choose_backend(CPU, dtype, head_size)
    shared = cpu.by_rows if dtype == torch.bfloat16 else cpu.fused
    assert (chosen.shared, chosen.own, chosen.tails) == (shared, cpu.fused_causal, cpu.fused_masked)


def test_a_device_without_kernels_has_plain_torch() -> None:
    assert choose_backend(torch.device("meta"), torch.float32, 64) == PLAIN


def test_each_role_takes_the_first_kernel_that_is_right(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Part:
        raise RuntimeError("no kernel image\nfor this device")

    wrong = spoiled(PLAIN.own, WRONG["log-sum-exp of base 2"])
    kernels: list[tuple[Role, str, Kernel | TailKernel]] = [
        (Role.SHARED, "broken", broken),
        (Role.SHARED, "fused", cpu.fused),
        (Role.SHARED, "late", broken),
        (Role.OWN, "wrong", wrong),
        (Role.TAILS, "fused", cpu.fused_masked),
    ]
    with caplog.at_level("INFO"):
        chosen = choose_among(kernels, CPU, torch.float32, 64)
    assert (chosen.shared, chosen.own, chosen.tails) == (cpu.fused, PLAIN.own, cpu.fused_masked)
    assert chosen.name == "fused+plain"
    where = "attention on cpu, float32, head size 64"
    assert caplog.messages == [
        f"{where}: broken is not used for shared parts: it fails in a long part with few rows: RuntimeError: no kernel image",
        f"{where}: wrong is not used for own parts: it differs from plain torch in 1 tokens over themselves",
        f"{where}: shared fused, own plain, tails fused",
    ]


def test_the_choice_is_made_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    choose_backend.cache_clear()
    with caplog.at_level("INFO"):
        assert choose_backend(CPU, torch.float32, 16) is choose_backend(CPU, torch.float32, 16)
    assert len(caplog.messages) == 1
