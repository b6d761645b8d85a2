"""The first answer from a cache after the server was stopped and started again, over computing its KV."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.contestant import Storing
from bench.figures import median, ratio
from bench.kv_files import NoFiles, wait_for_files
from bench.plan import Plan
from bench.roster import OURS
from bench.workload import Workload
from workers.engine.blocks import BLOCK_TOKENS

# Starts our side upon a folder, and stops it on leaving.
Start = Callable[[Path], AbstractContextManager[Storing]]


@dataclass(slots=True)
class Measured:
    cold_s: list[float] = field(default_factory=list)
    hit_s: list[float] = field(default_factory=list)
    voids: list[str] = field(default_factory=list)


def count_steps(plan: Plan) -> int:
    return 2 * plan.restarts


def measure(start: Start, workload: Workload, plan: Plan, tick: Callable[[str], None]) -> Measured:
    """A new document and a new data folder each time. The hit is the first request of its process: nothing is warmed up."""
    measured = Measured()
    for number in range(plan.restarts):
        document = workload.document(plan.longest)
        with TemporaryDirectory(prefix="headstart-bench-") as name:
            folder = Path(name)
            tick(f"{plan.longest:,} new tokens")
            with start(folder) as ours:
                cold_s = ours.keep(document).seconds
                try:
                    wait_for_files(folder, (), kv_bytes(ours, document.tokens))
                except NoFiles as error:
                    measured.voids.append(f"restart {number}: {error}")
                    break
            tick("stopped and started")
            with start(folder) as ours:
                measured.cold_s.append(cold_s)
                measured.hit_s.append(
                    ours.ask(workload.prompt(document, workload.question()), 1).first_text_s
                )
    return measured


def kv_bytes(ours: Storing, tokens: int) -> int:
    """What the KV of whole blocks takes, and its files at least."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS * ours.held().token_bytes


def figures(measured: Measured) -> dict[str, float | None]:
    cold, hit = median(measured.cold_s), median(measured.hit_s)
    return {
        "hit_over_cold": ratio(hit, cold),
        "restart_hit_ms": ratio(hit, 1e-3),
        "restart_cold_s": cold,
    }


def absolutes(measured: Measured, plan: Plan) -> dict[str, dict[str, Any]]:
    size = {
        "cold_s": median(measured.cold_s),
        "restart_hit_s": median(measured.hit_s),
        "colds_s": measured.cold_s,
        "restart_hits_s": measured.hit_s,
    }
    return {OURS: {str(plan.longest): size}}
