"""The machine that a figure was taken on, as far as it decides about figures."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers.engine.memory import usable_memory_bytes

_CPU_INFO = Path("/proc/cpuinfo")
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_QUIET_LOAD = 0.5  # running programs beside ours, a minute's average
_LONGEST_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    flags: tuple[str, ...]
    memory_gib: float
    system: str

    @property
    def computes_bfloat16(self) -> bool:
        """Figures are judged only where it does: elsewhere they are reported."""
        return "avx512_bf16" in self.flags


def this_machine() -> Machine:
    lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    has = facts.get("flags", "").split()
    return Machine(
        cpu=facts.get("model name", platform.processor()),
        cores=core_count(),
        flags=tuple(flag for flag in _FLAGS if flag in has),
        memory_gib=round(usable_memory_bytes() / 2**30, 1),
        system=platform.platform(terse=True),
    )


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def load() -> tuple[float, float, float]:
    """Programs that ran or wanted to, on average over 1, 5 and 15 minutes."""
    return os.getloadavg()


def is_quiet(one_minute: float) -> bool:
    return one_minute <= _QUIET_LOAD


def wait_until_quiet(tell: Callable[[float], None]) -> tuple[float, float, float]:
    """Let the load of what ran before (a set-up, say) fade, for some minutes at most. Gives the load then.

    tell: called every second with the load so far.
    """
    started = time.monotonic()
    while not is_quiet(load()[0]) and time.monotonic() - started < _LONGEST_WAIT_SECONDS:
        tell(load()[0])
        time.sleep(1.0)
    return load()
