"""Progress of long steps, drawn on stderr while they last."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from workers.engine.loading.progress import Progress as Report


@contextmanager
def conversion_progress() -> Iterator[Report]:
    """A callback (what, fraction done) that draws one bar a step; nothing is drawn where nothing is reported."""
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    )
    tasks: dict[str, TaskID] = {}

    def report(what: str, fraction: float) -> None:
        if what not in tasks:
            bars.start()
            tasks[what] = bars.add_task(what, total=1.0)
        bars.update(tasks[what], completed=fraction)
        if bars.finished:
            bars.stop()

    try:
        yield report
    finally:
        bars.stop()
