"""A process that dies, or a call that fails, between any two steps of a write leaves a whole file or none."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.engine.tiers.samples import names, read_back, sample, store_in, written
from workers.engine.tiers.errors import TierUnavailable

# What a write asks of the system, in this order.
STEPS = ["open", "writev", "writev", "writev", "fsync", "close", "rename", "open", "fsync", "close"]


class Interruption(BaseException):
    """Something that no part of a write expects."""


def count_steps(monkeypatch: pytest.MonkeyPatch, fail_at: int | None, error: BaseException) -> list[str]:
    """Record the steps, and raise in place of one of them."""
    steps: list[str] = []

    def stepping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            steps.append(name)
            if len(steps) - 1 == fail_at:
                if name == "close":
                    call(*arguments, **named)
                raise error
            return call(*arguments, **named)

        return step

    for name in set(STEPS):
        monkeypatch.setattr(os, name, stepping(name, getattr(os, name)))
    return steps


def test_these_are_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path)
    store.scan()
    with monkeypatch.context() as patch:
        steps = count_steps(patch, None, OSError())
        written(store, sample())
    assert steps == STEPS


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), Interruption()])
@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_step_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException
) -> None:
    store = store_in(tmp_path)
    store.scan()
    kept = written(store, sample(seed=1))
    with monkeypatch.context() as patch:
        count_steps(patch, step, error)
        with pytest.raises(TierUnavailable if isinstance(error, OSError) else Interruption):
            written(store, sample(seed=2))
    assert names(tmp_path) == [kept.path.name]
    assert store.used_bytes == kept.size_bytes
    assert torch.equal(read_back(store, kept), sample(seed=1).kv)


# Forks once a step: importing torch takes longer than all of them.
PROGRAM = f"""
import json, os, signal, sys
from pathlib import Path
from tests.workers.engine.tiers.samples import names, sample, store_in, written

def dying(step):
    done = 0
    def before(call):
        def counted(*arguments, **named):
            nonlocal done
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return call(*arguments, **named)
        return counted
    return before

for step in range({len(STEPS)} + 1):
    folder = Path(sys.argv[1]) / str(step)
    if os.fork() == 0:
        store = store_in(folder, incarnation="inc_dead")
        store.scan()
        written(store, sample(seed=1))
        before = dying(step)
        for name in {sorted(set(STEPS))}:
            setattr(os, name, before(getattr(os, name)))
        written(store, sample(seed=2))
        os._exit(0)
    print(json.dumps([os.waitstatus_to_exitcode(os.wait()[1]), names(folder)]))
"""


def test_a_process_killed_before_any_step_leaves_whole_files_and_what_is_removed_at_the_next_start(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
    )
    ends = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [code for code, _ in ends] == [-9] * len(STEPS) + [0]
    samples = {each.manifest: each for each in (sample(seed=1), sample(seed=2))}
    for step, (_, left) in enumerate(ends):
        store = store_in(tmp_path / str(step))
        found = store.scan()
        is_named = step > STEPS.index("rename")
        assert len(found) == 1 + is_named, step
        assert len([name for name in left if name.endswith(".staging")]) == (step > 0 and not is_named), step
        assert names(store.folder) == sorted(file.path.name for file in found)
        assert set(store.rejections().values()) == {0}
        for file in found:
            assert torch.equal(read_back(store, file), samples[file.manifest].kv)


def test_the_file_is_on_disk_before_its_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    store.scan()
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    written(store, sample())
    assert synced == [str(tmp_path / "inc_this-0.staging"), str(tmp_path)]
