"""An answer from KV that lies on disk, over one from KV in memory: what the disk adds, against reading the same bytes plainly."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import median, ratio
from bench.kv_files import NoFiles, drop_from_page_cache, read_and_digest, wait_for_files
from bench.plan import Plan
from bench.restart import Start, kv_bytes
from bench.roster import OURS
from bench.workload import Document, Workload

_RAM_HITS = 3


@dataclass(slots=True)
class Measured:
    """read_s: a plain read with SHA-256 of the files, which are `file_bytes` long together."""

    disk_s: list[float] = field(default_factory=list)
    ram_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    file_bytes: int = 0
    voids: list[str] = field(default_factory=list)

    @property
    def added_s(self) -> float | None:
        disk, ram = median(self.disk_s), median(self.ram_s)
        return None if disk is None or ram is None else disk - ram


def count_steps(plan: Plan) -> int:
    return 1 + plan.restarts


def measure(start: Start, workload: Workload, plan: Plan, tick: Callable[[str], None]) -> Measured:
    """Two caches: after each start the first answer is from the short one, which warms up; then the long one is asked."""
    measured = Measured()
    short, long = workload.document(plan.lengths[0]), workload.document(plan.longest)
    with TemporaryDirectory(prefix="headstart-bench-") as name:
        folder = Path(name)
        tick(f"{plan.longest:,} new tokens")
        try:
            files = _keep_both(start, folder, short, long)
        except NoFiles as error:
            measured.voids.append(str(error))
            return measured
        measured.file_bytes = sum(path.stat().st_size for path in files)
        for number in range(plan.restarts):
            tick("stopped and started")
            _ask(start, folder, files, workload, short, long, number, measured)
            drop_from_page_cache(files)
            measured.read_s.append(read_and_digest(files))
    return measured


def figures(measured: Measured) -> dict[str, float | None]:
    read = median(measured.read_s)
    return {
        "disk_ratio": ratio(measured.added_s, read),
        "disk_hit_ms": ratio(median(measured.disk_s), 1e-3),
        "ram_hit_ms": ratio(median(measured.ram_s), 1e-3),
        "read_and_digest_ms": ratio(read, 1e-3),
    }


def absolutes(measured: Measured, plan: Plan) -> dict[str, dict[str, Any]]:
    size = {
        "disk_hit_s": median(measured.disk_s),
        "ram_hit_s": median(measured.ram_s),
        "read_and_digest_s": median(measured.read_s),
        "file_mb": measured.file_bytes / 1e6,
        "disk_hits_s": measured.disk_s,
        "ram_hits_s": measured.ram_s,
        "reads_and_digests_s": measured.read_s,
    }
    return {OURS: {str(plan.longest): size}}


def _keep_both(start: Start, folder: Path, short: Document, long: Document) -> set[Path]:
    """The files of the long one."""
    with start(folder) as ours:
        ours.keep_too(short)
        others = wait_for_files(folder, (), kv_bytes(ours, short.tokens))
        ours.keep_too(long)
        return wait_for_files(folder, others, kv_bytes(ours, long.tokens))


def _ask(
    start: Start,
    folder: Path,
    files: set[Path],
    workload: Workload,
    short: Document,
    long: Document,
    number: int,
    measured: Measured,
) -> None:
    """One answer from disk, then some from memory, each to a new question."""
    with start(folder) as ours:
        ours.ask(workload.prompt(short, workload.question()), 1)
        drop_from_page_cache(files)
        held = ours.held().kv_bytes
        if held >= kv_bytes(ours, short.tokens) + kv_bytes(ours, long.tokens):
            measured.voids.append(
                f"restart {number}: {held:,} bytes of KV were in memory before they were asked for"
            )
        measured.disk_s.append(ours.ask(workload.prompt(long, workload.question()), 1).first_text_s)
        hits = [
            ours.ask(workload.prompt(long, workload.question()), 1).first_text_s for _ in range(_RAM_HITS)
        ]
        measured.ram_s += hits
