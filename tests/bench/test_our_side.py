"""Our side of both benchmarks, measured for real on a tiny model, in the process and over the wire that a run uses."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from typer import BadParameter

from bench import fanout, sharing, stall, ttft
from bench.__main__ import choose_peers
from bench.contestants.agreement import agreement_with_float32
from bench.contestants.in_process import InProcess
from bench.plan import Plan
from bench.remote import ContestantFailed, Remote, remote
from bench.roster import BATCHING, GENERATE, LLAMA, OURS, OURS_HTTP
from bench.workload import Workload
from prompting.format import PromptFormat
from tests.tiny_models import tiny_model_folder
from workers.engine.model import Model

ROOT = Path(__file__).parents[2]
PLAN = Plan(
    lengths=(100, 200),
    hit_rounds=2,
    short_rounds=1,
    cold_rounds=2,
    output_tokens=4,
    widths=(4, 2),
    fan_rounds=2,
    shared_tokens=200,
    sharing_tokens=300,
    stall_rounds=2,
    stream_tokens=5,
    restarts=2,
    lookup_nodes=2000,
    lookup_rounds=5,
    is_quick=True,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[Remote]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADSTART_MODEL", str(folder))
        environment.setenv("HEADSTART_ARENA_BYTES", str(64 << 20))
        environment.setenv("HEADSTART_DTYPE", "float32")
        with remote(OURS) as contestant:
            yield contestant


@pytest.fixture(scope="module")
def workload(folder: Path) -> Workload:
    return Workload(PromptFormat.load(folder))


def test_time_to_first_text(ours: Remote, workload: Workload) -> None:
    ticks: list[str] = []
    measured = ttft.measure({OURS: ours}, workload, PLAN, ticks.append)
    assert len(ticks) == ttft.count_steps([OURS], PLAN)
    for length, times in measured[OURS].items():
        assert len(times.cold) == (PLAN.cold_rounds if length == PLAN.longest else 1)
        assert len(times.hit) == len(times.token) == PLAN.hits(length)
        assert all(seconds > 0 for seconds in (*times.cold, *times.hit, *times.token))
    assert ttft.figures(measured, PLAN)["hit_ttft_ms_200"] is not None


def test_fan_out(ours: Remote, workload: Workload) -> None:
    ticks: list[str] = []
    measured = fanout.measure({OURS: ours}, workload, PLAN, ticks.append)
    assert len(ticks) == fanout.count_steps([OURS], PLAN)
    for width, runs in measured.runs[OURS].items():
        assert [run.output_tokens for run in runs] == [width * PLAN.output_tokens] * PLAN.fan_rounds
    alone = measured.alone[OURS]
    assert len(alone.cold) == len(alone.hit) == 1
    first = measured.runs[OURS][4][0]
    assert first.counted_bytes is not None
    # At least one request: 2 layers of 2 heads of 16 numbers for each token, keys and values, and logits.
    assert first.counted_bytes > 4 * (18 * 2 * 2 * 2 * 16 + 49152)
    assert fanout.figures(measured.runs, PLAN)["memory_growth_ratio"] is not None


def test_two_caches_that_begin_alike(ours: Remote, workload: Workload) -> None:
    ticks: list[str] = []
    measured = sharing.measure(ours, workload, PLAN, ticks.append)
    assert len(ticks) == sharing.STEPS
    assert measured.tokens == 600
    assert 380 < measured.distinct_tokens <= 400
    # 3 blocks of what is shared, and for each cache 1 of its own and its piece: as the engine counts them.
    assert measured.kv_bytes == (3 + 2 * 2) * 64 * measured.after.token_bytes
    assert sharing.figures(measured)["kv_ratio"] == measured.kv_bytes / measured.distinct_bytes


@pytest.mark.long
def test_streams_while_a_prefix_is_created(ours: Remote, workload: Workload) -> None:
    ticks: list[str] = []
    measured = stall.measure(ours, workload, PLAN, ticks.append)
    assert len(ticks) == stall.count_steps(PLAN)
    assert len(measured.alone_s) == len(measured.beside) == PLAN.stall_rounds
    for kept in measured.beside:
        assert kept.seconds > 0
        assert len(kept.quiet_gaps_s) == stall.STREAMS * (PLAN.stream_tokens - 1)
        assert kept.gaps_s
    assert stall.find_voids(measured) == []
    assert None not in stall.figures(measured).values()


@pytest.mark.long
def test_what_was_kept_is_there_after_a_new_start(
    folder: Path, workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_MODEL", str(folder))
    monkeypatch.setenv("HEADSTART_ARENA_BYTES", str(64 << 20))
    first, second = workload.document(100), workload.document(120)
    with closing(InProcess(tmp_path)) as contestant_before:  # in this process, which has torch already
        contestant_before.keep(first)
        contestant_before.keep_too(second)
    with remote(OURS, tmp_path) as contestant:
        for document in (second, first):
            assert contestant.ask(workload.prompt(document, workload.question()), 1).first_text_s > 0
        contestant.forget(first)
        with pytest.raises(ContestantFailed, match="StopIteration"):
            contestant.ask(workload.prompt(first, workload.question()), 1)


def test_it_says_what_it_is(ours: Remote) -> None:
    description = ours.description
    assert description.settings["dtype"] == "float32"
    assert description.settings["threads"] == torch.get_num_threads()
    assert {"torch", "transformers", "headstart-server"} <= set(description.versions)
    assert {"model", "arena_bytes", "dtype"} <= set(description.changed)


def test_a_contestant_that_fails_is_told_with_its_log() -> None:
    with pytest.raises(ContestantFailed, match="KeyError: 'nobody'"), remote("nobody"):
        pass


def test_peers_are_chosen_among_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert choose_peers(f"{GENERATE}, {BATCHING}") == [GENERATE, BATCHING]
    assert LLAMA not in choose_peers(None)
    with pytest.raises(BadParameter, match="make bench installs"):
        choose_peers(LLAMA)
    with pytest.raises(BadParameter, match="none of"):
        choose_peers("nobody")


@pytest.mark.long
def test_over_http(folder: Path, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_MODEL", str(folder))
    monkeypatch.setenv("HEADSTART_ARENA_BYTES", str(64 << 20))
    with remote(OURS_HTTP) as contestant:
        document = workload.document(200)
        assert contestant.keep(document).seconds > 0
        prompts = [workload.prompt(document, workload.question()) for _ in range(2)]
        fanned_out = contestant.fan_out(prompts, 3)
    assert fanned_out.seconds > 0
    assert 0 < fanned_out.output_tokens <= 6


def test_agreement_with_float32(folder: Path) -> None:
    cpu = torch.device("cpu")
    token_ids = list(range(100, 200))
    same = Model.load(folder, device=cpu, dtype=torch.float32)
    other = Model.load(folder, device=cpu, dtype=torch.bfloat16)
    assert agreement_with_float32(same, folder, token_ids) == 1.0
    assert 0 < agreement_with_float32(other, folder, token_ids) < 1


# In a process of its own: what other tests give back meanwhile would be taken off.
_GROW = """
from bench.memory import growth_bytes

def take_and_give_back():
    taken = bytearray(64 << 20)
    taken[:: 1 << 12] = b"x" * len(taken[:: 1 << 12])

print(growth_bytes(take_and_give_back))
"""


def test_growth_is_that_of_the_peak() -> None:
    grown = subprocess.run(
        [sys.executable, "-c", _GROW], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert 60 << 20 < int(grown) < 80 << 20
