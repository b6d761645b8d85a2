"""The set-up knows when it is current, says what it fetches, shows progress, and the pins are what is installed."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import freeze_constraints
import pytest
import setup
import setup_apt
import setup_postgresql
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


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A machine whose Python has no venv, with apt-get, sudo and no other program; what it is told to run."""
    ran: list[list[str]] = []

    def run(command: list[str | Path], **_: object) -> "subprocess.CompletedProcess[str]":
        ran.append([str(word) for word in command])
        is_known = ran[-1][-1] in {"update", "python3-venv", "postgresql"} or "venv" in ran[-1]
        return subprocess.CompletedProcess(command, returncode=0 if is_known else 100)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    return ran


@pytest.mark.parametrize(("user_id", "as_root"), [(0, []), (1000, ["sudo"])])
def test_a_python_without_venv_gets_it_from_apt(
    user_id: int,
    as_root: list[str],
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user_id)
    setup_steps.make_environment(tmp_path / "venv")
    *apt, last = commands
    assert [[*command[: len(as_root) + 1], command[-1]] for command in apt] == [
        [*as_root, "apt-get", "update"],
        [*as_root, "apt-get", f"python{sys.version_info.major}.{sys.version_info.minor}-venv"],
        [*as_root, "apt-get", "python3-venv"],
    ]
    assert last == [sys.executable, "-m", "venv", str(tmp_path / "venv")]


@pytest.mark.parametrize(
    ("missing", "words"), [("apt-get", "there is no apt-get"), ("sudo", "Run as root: apt-get")]
)
def test_who_cannot_install_venv_is_told_what_to_do(
    missing: str, words: str, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/usr/bin/{name}")
    with pytest.raises(setup_apt.StepFailed, match=words):
        setup_steps.make_environment(tmp_path / "venv")
    assert commands == []


def test_postgresql_is_installed_only_where_it_is_missing(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = setup_postgresql.find_programs()
    assert programs is not None
    assert (programs / "postgres").is_file()
    assert setup_postgresql.main() == 0
    assert commands == []
    monkeypatch.setattr(setup_postgresql, "_DEBIANS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "initdb" else f"/usr/bin/{name}")
    assert setup_postgresql.main() == 0
    assert commands[-1][-3:] == ["install", "-y", "postgresql"]


def test_who_cannot_install_postgresql_is_told_what_to_do(
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(setup_postgresql, "_DEBIANS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert setup_postgresql.main() == 1
    assert "the tests need PostgreSQL and there is no apt-get" in capsys.readouterr().out
    assert commands == []


def test_of_several_postgresqls_the_newest_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("9", "15", "16"):
        programs = tmp_path / version / "bin"
        programs.mkdir(parents=True)
        (programs / "initdb").touch()
    monkeypatch.setattr(setup_postgresql, "_DEBIANS", tmp_path)
    assert setup_postgresql.find_programs() == tmp_path / "16" / "bin"


@pytest.mark.parametrize(
    ("address", "requires", "said"),
    [
        (
            "file:///wheels/torch-2.13.0%2Bcpu-cp311.whl",
            [],
            "at most: PyTorch 0 MB (at hand: torch-2.13.0+cpu-cp311.whl)",
        ),
        (
            "https://pypi.org/torch.whl",
            ["nvidia-cublas; sys_platform == 'linux'"],
            "PyTorch 3,000 MB (with CUDA)",
        ),
        ("https://example.org/cpu/torch.whl", ["sympy"], "PyTorch 190 MB (CPU build)"),
    ],
)
def test_the_size_of_the_download_is_said_before_it_starts(
    address: str,
    requires: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    report = {"install": [{"download_info": {"url": address}, "metadata": {"requires_dist": requires}}]}

    def run(command: list[str | Path], **_: object) -> "subprocess.CompletedProcess[str]":
        assert "--dry-run" in command
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(report))

    monkeypatch.setattr(subprocess, "run", run)
    setup_steps.announce_download(tmp_path, ROOT, None)
    shown = capsys.readouterr().out
    assert said in shown
    assert ("TORCH_INDEX=" in shown) == ("CUDA" in said)
