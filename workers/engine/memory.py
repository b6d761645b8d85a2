"""How much memory this process may use: the machine's, or less where a control group limits it."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_CGROUP_V1 = _CGROUP / "memory" / "memory.limit_in_bytes"


def usable_memory_bytes() -> int:
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Limits of this process's group and of those above it (v2), or of the v1 hierarchy's root as seen from here."""
    limits = [_read(_CGROUP_V1)]
    try:
        lines = _OWN_GROUPS.read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        hierarchy, _, path = line.partition("::")
        if hierarchy == "0":
            group = _CGROUP / path.lstrip("/")
            limits += [
                _read(folder / "memory.max")
                for folder in (group, *group.parents)
                if _CGROUP in (folder, *folder.parents)
            ]
    return [limit for limit in limits if limit is not None]


def _read(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
