"""Restart and tiers with a contestant that keeps files, and with none: both come to an end and tell what they saw."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench import kv_files, restart, tiers
from bench.contestant import Asked, Held, Kept
from bench.plan import QUICK
from bench.workload import Document, Prompt, Workload
from prompting.format import PromptFormat
from tests.tiny_models import built_in_folder
from workers.engine.tiers.kv_file import SUFFIX

PLAN = replace(QUICK, lengths=(100, 200), restarts=2)
TOKEN_BYTES = 10
FIRST_WORDS = 60


class Ours:
    """Keeps a file for each document, called by its first words; an answer takes 9 seconds the first time in a process, then 1."""

    def __init__(self, folder: Path, *, writes: bool = True, is_eager: bool = False) -> None:
        self.folder, self.writes = folder, writes
        self.loaded = self.files() if is_eager else set()

    def files(self) -> set[Path]:
        return set(self.folder.glob(f"*{SUFFIX}"))

    def keep(self, document: Document) -> Kept:
        return self.keep_too(document)

    def keep_too(self, document: Document) -> Kept:
        if self.writes:
            path = self.folder / f"{document.text[:FIRST_WORDS]}{SUFFIX}"
            path.write_bytes(b"x" * document.tokens * TOKEN_BYTES)
        return Kept(100.0)

    def forget(self, document: Document) -> None:
        raise AssertionError("nobody asks for it here")

    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        (path,) = (path for path in self.files() if path.name.removesuffix(SUFFIX) in prompt.text)
        seconds = 1.0 if path in self.loaded else 9.0
        self.loaded.add(path)
        return Asked(seconds, None)

    def held(self) -> Held:
        return Held(sum(path.stat().st_size for path in self.loaded), TOKEN_BYTES)


@pytest.fixture
def workload() -> Workload:
    return Workload(PromptFormat.load(built_in_folder()))


@contextmanager
def ours(folder: Path) -> Iterator[Ours]:
    yield Ours(folder)


@contextmanager
def forgetful(folder: Path) -> Iterator[Ours]:
    yield Ours(folder, writes=False)


@contextmanager
def eager(folder: Path) -> Iterator[Ours]:
    yield Ours(folder, is_eager=True)


def test_restart(workload: Workload) -> None:
    ticks: list[str] = []
    measured = restart.measure(ours, workload, PLAN, ticks.append)
    assert len(ticks) == restart.count_steps(PLAN)
    assert (measured.cold_s, measured.hit_s, measured.voids) == ([100.0] * 2, [9.0] * 2, [])
    assert restart.absolutes(measured, PLAN)["headstart"]["200"]["cold_s"] == 100.0


def test_tiers(workload: Workload) -> None:
    ticks: list[str] = []
    measured = tiers.measure(ours, workload, PLAN, ticks.append)
    assert len(ticks) == tiers.count_steps(PLAN)
    assert (measured.disk_s, measured.ram_s, measured.voids) == ([9.0] * 2, [1.0] * 6, [])
    assert measured.file_bytes == 200 * TOKEN_BYTES
    assert measured.added_s == 8.0
    assert all(seconds > 0 for seconds in measured.read_s)


def test_the_cache_that_warms_up_may_be_in_memory(workload: Workload) -> None:
    """Also where it is as long as the other, as in a quick run."""
    measured = tiers.measure(ours, workload, replace(PLAN, lengths=(200,)), lambda _: None)
    assert measured.voids == []


def test_without_files_the_run_is_void(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_files, "LONGEST_WAIT_SECONDS", 0.2)
    for voids in (
        restart.measure(forgetful, workload, PLAN, lambda _: None).voids,
        tiers.measure(forgetful, workload, PLAN, lambda _: None).voids,
    ):
        (reason,) = voids
        assert "0 KV files of 0 bytes" in reason


def test_kv_that_is_read_before_anybody_asks_voids_the_tiers(workload: Workload) -> None:
    measured = tiers.measure(eager, workload, PLAN, lambda _: None)
    assert len(measured.voids) == PLAN.restarts
    assert "were in memory before they were asked for" in measured.voids[0]
