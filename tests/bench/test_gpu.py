"""The GPU benchmark with tiny shapes on a CPU: what it prints, what it notices, and that it ends in time."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import __main__ as program, measure as measuring
from bench.gpu.budget import Budget, OutOfTime
from bench.gpu.measure import Seen, measure
from bench.gpu.report import lines
from bench.gpu.shapes import SHAPES, TINY_PLAN, TINY_SHAPES
from workers.engine.attention import Part
from workers.engine.attention.plain import PLAIN

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TINY = TINY_SHAPES["tiny"]


@pytest.mark.long
def test_the_script_needs_torch_and_transformers_alone(tmp_path: Path) -> None:
    """GPU machines have no database, and none of the API's libraries."""
    for name in ("sqlalchemy", "pydantic", "pydantic_settings", "fastapi", "alembic"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on this machine')")
    (tmp_path / "sitecustomize.py").write_text("import gc\ngc.disable()  # imports take half as long\n")
    ran = subprocess.run(
        [ROOT / "bench" / "gpu.sh", "--device", "cpu", "--tiny"],
        env=os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "needs a CUDA device" in ran.stderr
    facts = json.loads(ran.stdout.splitlines()[-1])
    assert (facts["benchmark"], facts["tests"], facts["tiny"]) == ("gpu", "skipped", True)
    assert (facts["ok"], facts["complete"]) == (True, True)
    assert facts["versions"]["torch"] == torch.__version__
    tiny = facts["models"]["tiny"]
    assert tiny["left_out"] == []
    assert len(tiny["errors"]) == 6
    assert list(tiny["times"]) == ["by rows+fused", "plain"]
    for times in tiny["times"].values():
        assert {kind: list(seconds) for kind, seconds in times.items()} == {
            "prefill_s": ["130", "200"],
            "hit_s": ["130", "200"],
            "decode_s": ["1", "3"],
        }
        assert all(seconds > 0 for kind in times.values() for seconds in kind.values())


def test_a_backend_that_merges_wrongly_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Part:
        out, lse = PLAIN.shared(query, key, value, scale)
        return out, lse + 1

    wrong = replace(PLAIN, name="shifted", shared=shifted)
    monkeypatch.setattr(measuring, "choose_backend", lambda *_: wrong)
    seen = measure(TINY, TINY_PLAN, CPU, torch.float32, Budget(100))
    assert not seen.is_right
    assert (
        seen.errors["shifted: hit against transformers"]
        > 100 * seen.errors["plain: hit against transformers"]
    )
    assert lines("tiny", seen)[-1].strip() == "WRONG"
    assert run(monkeypatch, "--dtype", "float32") == 1


def test_without_time_everything_is_left_out_and_the_line_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(monkeypatch, "--budget-seconds", "0")
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (status, facts["complete"]) == (0, False)
    assert facts["models"]["tiny"]["left_out"] == ["all: no time left"]


def test_time_that_ends_on_the_way_leaves_out_the_rest() -> None:
    class Short(Budget):
        checks = 0

        def check(self) -> None:
            self.checks += 1
            if self.checks > 8:  # at the last of four chunks of the second comparison
                raise OutOfTime

    seen = measure(TINY, TINY_PLAN, CPU, torch.float32, Short(100))
    assert seen.left_out == [
        "comparison of plain: no time left",
        "times of fused: no time left",
        "times of plain: no time left",
    ]
    assert seen.is_right


def test_failed_tests_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--budget-seconds", "0", "--tests", "failed") == 1


def test_memory_that_ends_leaves_the_rest_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Part:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measuring, "choose_backend", lambda *_: replace(PLAIN, name="greedy", shared=full))
    seen = measure(TINY, TINY_PLAN, CPU, torch.float32, Budget(100))
    assert seen.left_out == [f"{what} of greedy: not enough memory" for what in ("comparison", "times")]
    assert set(seen.times["plain"].decode_s) == {1, 3}
    assert "–" in "".join(lines("tiny", seen))


def test_a_kernel_that_breaks_is_wrong_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Part:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(measuring, "choose_backend", lambda *_: replace(PLAIN, name="broken", own=broken))
    seen = measure(TINY, TINY_PLAN, CPU, torch.float32, Budget(100))
    assert not seen.is_right
    assert seen.left_out == [
        f"{what} of broken: RuntimeError: no kernel image" for what in ("comparison", "times")
    ]
    assert set(seen.times["plain"].decode_s) == {1, 3}


def test_a_model_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * 10**9, 24 * 10**9))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    seen = measure(SHAPES["8b"], TINY_PLAN, torch.device("cuda"), torch.bfloat16, Budget(100))
    assert seen == Seen(left_out=["needs 24 GB of memory, and 8 GB are free"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert program.main() == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_shapes_are_as_large_as_their_names() -> None:
    assert [round(shape.weight_count / 1e9, 1) for shape in SHAPES.values()] == [1.2, 8.0]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--tiny", *arguments])
    return program.main()
