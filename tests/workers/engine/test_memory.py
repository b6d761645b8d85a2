"""What a process may use is the machine's memory, or less where any control group above it says so."""

import os
from pathlib import Path

import pytest

from workers.engine import memory

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of control groups in a folder, with this process in /outer/inner."""
    (tmp_path / "membership").write_text("1:name=systemd:/elsewhere\n0::/outer/inner\n")
    tree = tmp_path / "cgroup"
    (tree / "outer" / "inner").mkdir(parents=True)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "membership")
    monkeypatch.setattr(memory, "_CGROUP", tree)
    return tree


def test_here_it_is_something_and_not_more_than_there_is() -> None:
    assert 0 < memory.usable_memory_bytes() <= PHYSICAL


def test_without_limits_it_is_all_there_is(groups: Path) -> None:
    (groups / "outer" / "memory.max").write_text("max\n")
    assert memory.usable_memory_bytes() == PHYSICAL


@pytest.mark.parametrize("where", ["outer/inner", "outer", "."])
def test_the_tightest_group_counts(groups: Path, where: str) -> None:
    for folder in (groups, groups / "outer", groups / "outer" / "inner"):
        (folder / "memory.max").write_text(f"{PHYSICAL - 1}\n")
    (groups / where / "memory.max").write_text(f"{GIB // 2}\n")
    assert memory.usable_memory_bytes() == GIB // 2


def test_what_lies_above_the_groups_is_not_read(groups: Path) -> None:
    (groups.parent / "memory.max").write_text("1\n")
    assert memory.usable_memory_bytes() == PHYSICAL


@pytest.mark.parametrize("where", ["outer/inner", "outer", "."])
@pytest.mark.parametrize("controllers", ["memory", "cpu,memory"])
def test_the_older_hierarchy_is_asked_too(groups: Path, where: str, controllers: str) -> None:
    (groups.parent / "membership").write_text(f"4:{controllers}:/outer/inner\n1:cpu:/\n0::/\n")
    (groups / "memory" / "outer" / "inner").mkdir(parents=True)
    (groups / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # its word for none
    (groups / "memory" / where / "memory.limit_in_bytes").write_text(f"{GIB // 4}\n")
    assert memory.usable_memory_bytes() == GIB // 4


def test_a_container_that_sees_its_group_as_the_root_finds_it_there(groups: Path) -> None:
    (groups.parent / "membership").write_text("4:memory:/docker/0123/inner\n")
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text(f"{GIB // 4}\n")
    assert memory.usable_memory_bytes() == GIB // 4


def test_a_system_without_control_groups(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_OWN_GROUPS", groups / "absent")
    assert memory.usable_memory_bytes() == PHYSICAL
