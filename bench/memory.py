"""How far this process grows while something runs: the peak of its resident memory, as Linux counts it."""

from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def growth_bytes(work: Callable[[], None]) -> int:
    """Run it and tell the highest resident memory during it, less that before it."""
    _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    before = _read("VmRSS")
    work()
    return _read("VmHWM") - before


def _read(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{_STATUS} has no {name}")
