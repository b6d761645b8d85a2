"""`bench report`: a month over millions of ledger rows, its reports, and the storage of many live caches, on PostgreSQL."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.billing.command import Url
from bench.database import borrowed, migrate, opened
from bench.figures import TARGETS
from bench.ledger.live import Accrued, accrue_an_hour
from bench.ledger.measure import STEPS, Month, measure_month
from bench.ledger.shape import shape_of
from bench.machine import load, this_machine
from bench.postgresql import NoServer, create_database, find_programs, own_server
from bench.progress import progress
from bench.report import rounded, shown
from models.session import Database

ROWS, CACHES = 10_000_000, 100_000
_QUICK_ROWS, _QUICK_CACHES = 20_000, 1_000
# PostgreSQL's own defaults, so that every commit waits for its disk, but for what whoever installs it changes.
_OPTIONS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "timezone": "UTC"}

Rows = Annotated[int | None, typer.Option(min=10_000, help=f"About how many ledger rows. [default: {ROWS}]")]
Caches = Annotated[int | None, typer.Option(min=1, help=f"How many live caches. [default: {CACHES}]")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Few rows: shows that it works, and compares with nothing.")
]


def report_command(
    rows: Rows = None, caches: Caches = None, *, quick: Quick = False, database_url: Url = None
) -> None:
    """Reports of a month of 10,000,000 ledger rows, and an hour of storage of 100,000 live caches, on PostgreSQL."""
    shape = shape_of(rows or (_QUICK_ROWS if quick else ROWS))
    cache_count = caches or (_QUICK_CACHES if quick else CACHES)
    load_before = load()
    try:
        with _server(database_url) as server, progress("report", STEPS + 1) as tick:
            tick(f"an hour of {cache_count} caches")
            with _empty(server, database_url) as database:
                accrued = accrue_an_hour(database, cache_count)
            with _empty(server, database_url) as database:
                seen = measure_month(database, shape, tick)
    except NoServer as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    machine = this_machine()
    figures = {
        "report_s": seen.report_s,
        "accrual_s": accrued.seconds,
        "rows_per_s": accrued.entries / accrued.seconds,
    }
    wrong = [*seen.wrong, *accrued.wrong]
    _show(seen, accrued, figures, wrong)
    about = {"quick": quick, "machine": f"{machine.cpu}, {machine.cores} cores", "load_before": load_before}
    line = {
        "benchmark": "report",
        **figures,
        "wrong": wrong,
        "month": seen.as_json(),
        "accrual": accrued.as_json(),
        **about,
    }
    typer.echo(json.dumps(rounded(line)))
    if wrong:
        raise typer.Exit(1)


@contextmanager
def _server(address: str | None) -> Iterator[Path | None]:
    """The folder of a server of our own, where none is named."""
    if address is not None:
        yield None
        return
    programs = find_programs()
    if programs is None:
        raise NoServer("PostgreSQL's programs are not on this machine; install them, or name --database-url.")
    with own_server(programs, _OPTIONS) as folder:
        yield folder


@contextmanager
def _empty(server: Path | None, address: str | None) -> Iterator[Database]:
    with ExitStack() as kept:
        if server is not None:
            url = create_database(server)
        else:
            assert address is not None
            url = kept.enter_context(borrowed(address))
        migrate(url)
        yield kept.enter_context(opened(url, pool_size=2))


def _show(seen: Month, accrued: Accrued, figures: dict[str, float], wrong: list[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    sizes = ", ".join(f"{name} {size / 2**20:,.0f} MB" for name, size in seen.sizes.items())
    console.print(
        f"{seen.rows:,} ledger rows (ids to {seen.newest_id:,}), {seen.hour_rows:,} hours; {sizes}. Generated in "
        f"{seen.generated_s:.0f} s, rolled up in {seen.rolled_up_s:.0f} s; the last day verified in {seen.verify_s:.1f} s."
    )
    table = Table(
        "report", "report_s", "GROUP BY of all entries, s", "lines", "nano-USD", "the same by GROUP BY"
    )
    for answer in seen.answers:
        seconds = shown(answer.report_s), shown(answer.raw_seconds)
        table.add_row(
            answer.name, *seconds, str(answer.line_count), str(answer.nano_usd), str(answer.raw_nano_usd)
        )
    console.print(table)
    console.print(
        f"{accrued.caches:,} live caches: {accrued.entries:,} entries in {accrued.seconds:.1f} s, rolled up in "
        f"{accrued.rolled_up_seconds:.1f} s; again: {accrued.entries_again} in {accrued.again_seconds:.2f} s; verified in "
        f"{accrued.verify_seconds:.1f} s."
    )
    for name, target in TARGETS.items():
        if name in figures:
            verdict = target.verdict(figures[name])
            console.print(f"{name} {shown(figures[name])} ({target.sign} {target.must:g}): {verdict}")
    for each in wrong:
        console.print(f"[red]WRONG[/]: {each}")
