"""Bars on stderr, so that stdout has nothing but results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Called with what begins now."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        done = -1

        def tick(what: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, description=f"{title}: {what}", completed=done)

        yield tick
        bar.update(task, description=title, completed=total)
