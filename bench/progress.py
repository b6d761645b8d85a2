"""Bars on stderr, so that stdout has nothing but results."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Tick(Protocol):
    def __call__(self, what: str, completed: int | None = None) -> None:
        """Say what begins now, and how many steps are done: one more than the last time, where nothing is said."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Tick]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        done = -1

        def tick(what: str, completed: int | None = None) -> None:
            nonlocal done
            done = done + 1 if completed is None else completed
            bar.update(task, description=f"{title}: {what}", completed=done)

        yield tick
        bar.update(task, description=title, completed=total)
