"""Progress of long steps, drawn on stderr while they last."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

Report = Callable[[str, float], None]  # what is being done, and how much of it is done, from 0 to 1


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


@contextmanager
def task_progress() -> Iterator[Report]:
    """A callback (what, fraction done) that draws one bar for a whole task, which says what is being done."""
    bar = Progress(
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, fraction: bar.update(task, description=what, completed=fraction)
