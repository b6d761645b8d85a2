"""How much memory this process may use: the machine's, or less where a control group limits it."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def usable_memory_bytes() -> int:
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """Limits of this process's groups and of those above them, in the one hierarchy (v2) or in memory's own (v1)."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _limits_upwards(_CGROUP, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_upwards(_CGROUP / "memory", path, "memory.limit_in_bytes")


def _limits_upwards(root: Path, path: str, name: str) -> Iterator[int]:
    """A container may not see its group under the path that the host knows; then the root is its group."""
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if root in (folder, *folder.parents) and (limit := _read(folder / name)) is not None:
            yield limit


def _read(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
