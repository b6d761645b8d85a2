"""What the demo tells a person, on stderr: progress while something takes long, then what it means."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.demo.answers import Answer
from cli.demo.bill import DemoBill

METERS = {
    "input_tokens": "input, computed",
    "cache_read_tokens": "input, read from the cache",
    "cache_write_tokens": "written into the cache",
    "output_tokens": "output",
    "cache_storage_token_seconds": "kept (token-seconds)",
}
TICK_SECONDS = 0.2


class Story:
    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def waiting(self, what: str, about_seconds: float | None = None) -> Iterator[None]:
        """A bar for as long as the body takes; it fills where the time is known roughly, else it moves."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(what, total=about_seconds)
            done = Event()
            ticker = Thread(target=_fill, args=(progress, task, about_seconds, done))
            ticker.start()
            try:
                yield
            finally:
                done.set()
                ticker.join()
                progress.update(task, total=1, completed=1)

    def introduce(self, address: str, model: str, word_count: int) -> None:
        self._console.print(
            f"[bold]{model}[/] answers at {address}; the document has {word_count:,} words.\n"
        )

    def tell_answer(self, answer: Answer) -> None:
        how = f"{answer.cached_tokens:,} of {answer.prompt_tokens:,} tokens from the cache"
        if not answer.cached_tokens:
            how = f"{answer.prompt_tokens:,} tokens computed"
        self._console.print(f"  [cyan]{answer.question}[/]")
        self._console.print(f"  {answer.text}", markup=False)
        self._console.print(f"  [dim]first text after {answer.first_text_s:.2f} s, {how}[/]\n")

    def tell_cache(self, name: str, token_count: int) -> None:
        self._console.print(f"  {name} holds {token_count:,} tokens. Now only the question is computed:\n")

    def conclude(self, cold_s: float, hit_s: float, bill: DemoBill) -> None:
        faster = f"{cold_s / hit_s:.0f} times"
        self._console.print(
            f"First text: [bold]{cold_s:.2f} s[/] without the cache, [bold]{hit_s:.2f} s[/] with it: {faster} faster.\n"
        )
        table = Table(title="The bill, at the example prices", title_justify="left")
        table.add_column("meter")
        table.add_column("quantity", justify="right")
        table.add_column("nano-USD", justify="right")
        for meter, quantity, amount_nano_usd in bill.meters:
            table.add_row(METERS.get(meter, meter), f"{quantity:,}", f"{amount_nano_usd:,}")
        table.add_section()
        table.add_row("total", "", f"{bill.amount_nano_usd:,}")
        self._console.print(table)
        proof = "equals" if bill.matches else "[red]differs from[/]"
        self._console.print(f"The report {proof} an independent recomputation from the rows.\n")


def _fill(progress: Progress, task: TaskID, about_seconds: float | None, done: Event) -> None:
    started = time.monotonic()
    while not done.wait(TICK_SECONDS):
        if about_seconds is not None:
            elapsed = time.monotonic() - started
            progress.update(task, completed=min(elapsed, 0.97 * about_seconds))
