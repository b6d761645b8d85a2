"""The set-up knows when it is current, shows progress, and the pins are what is installed."""

import re
from pathlib import Path

import freeze_constraints
import pytest
import setup
import setup_steps
from packaging.version import Version
from setup_progress import Progress

ROOT = Path(__file__).parents[2]
PINS = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_what_is_tested_is_what_is_pinned() -> None:
    wanted = freeze_constraints.frozen_versions()
    assert wanted.keys() <= PINS.keys()
    assert {name: PINS[name] for name in wanted} == wanted


def test_torch_is_pinned_without_a_build_so_that_any_build_fits() -> None:
    assert Version(PINS["torch"]).local is None


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_installed_makes_it_run_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("pyproject.toml", "constraints.txt"):
        (tmp_path / each).write_bytes((ROOT / each).read_bytes())
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp")
    assert not setup.is_current()
    setup.STAMP.write_text(setup.fingerprint())
    assert setup.is_current()
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    assert not setup.is_current()


def test_progress_counts_packages_found_and_then_unpacked(tmp_path: Path) -> None:
    (tmp_path / "pip-26.0.dist-info").mkdir()
    progress = Progress(tmp_path, count=2)
    assert progress.fraction() == 0
    progress.read("Collecting rich>=14")
    progress.read("Requirement already satisfied: anyio<5 in /somewhere (4.16.0)")
    assert progress.fraction() == 0.5
    progress.read("Installing collected packages: rich, anyio")
    (tmp_path / "rich-15.0.0.dist-info").mkdir()
    assert progress.fraction() == 0.75
    assert progress.doing == "unpacking"


def test_wheels_beside_the_checkout_and_an_index_are_passed_on(tmp_path: Path) -> None:
    assert setup_steps.index_arguments(tmp_path, None) == []
    (tmp_path / ".whl").mkdir()
    assert setup_steps.index_arguments(tmp_path, "https://example.org/cpu") == [
        "--find-links",
        str(tmp_path / ".whl"),
        "--extra-index-url",
        "https://example.org/cpu",
    ]
