"""Which attention runs on a device: of its kernels those that pass a test at start, plain torch in their place where none does."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from workers.engine.attention.contract import Backend, Kernel, Role, TailKernel
from workers.engine.attention.cpu import cpu_kernels
from workers.engine.attention.cuda import cuda_kernels
from workers.engine.attention.plain import PLAIN
from workers.engine.attention.proving import Cases, find_fault, find_fault_in_merge

log = logging.getLogger(__name__)

_KERNELS = {"cpu": cpu_kernels, "cuda": cuda_kernels}


@cache
def choose_backend(device: torch.device, dtype: torch.dtype, head_size: int) -> Backend:
    """Tested once a process; what was chosen, and what was not and why, is in the log."""
    kernels = _KERNELS[device.type](dtype) if device.type in _KERNELS else []
    return choose_among(kernels, device, dtype, head_size)


@torch.inference_mode()
def choose_among(
    kernels: Sequence[tuple[Role, str, Kernel | TailKernel]],
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
) -> Backend:
    """The first kernel of each role that is right, plain torch where there is none."""
    where = f"{device}, {str(dtype).removeprefix('torch.')}, head size {head_size}"
    backend, names = PLAIN, dict.fromkeys(Role, "plain")
    for role, name, kernel in kernels:
        if names[role] != "plain":
            continue
        candidate = backend.taking(role, kernel)
        fault = find_fault(candidate, role, Cases(device, dtype, head_size))
        if fault is None:
            backend, names[role] = candidate, name
        else:
            log.warning("attention on %s: %s is not used for %s parts: it %s", where, name, role, fault)
    if backend != PLAIN and (fault := find_fault_in_merge(backend, Cases(device, dtype, head_size))):
        log.warning("attention on %s: plain torch is used for everything: the rest %s", where, fault)
        backend, names = PLAIN, dict.fromkeys(Role, "plain")
    log.info("attention on %s: %s", where, ", ".join(f"{role} {name}" for role, name in names.items()))
    return replace(backend, name="+".join(dict.fromkeys(names.values())))
