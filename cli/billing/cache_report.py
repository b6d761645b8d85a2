"""`headstart billing caches`: which caches pay, and which cost more than they save."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from billing.asking import parse_query
from billing.break_even import rounded
from billing.cache_report import SUBJECTS, CacheFigures, CacheReport, cache_figures, cache_report
from billing.cache_report_csv import cache_report_csv
from billing.cache_report_json import cache_report_json
from billing.money import usd
from cli.billing.options import (
    AsJson,
    Format,
    InForm,
    OneProject,
    one_project_id,
    print_csv,
    project_names,
)
from cli.billing.report import INSTANT
from cli.database import open_database
from cli.tables import instant_text, print_json, print_table
from core.clock import SystemClock, instant
from core.settings import load_settings

_COLUMNS = (
    *(
        "project",
        "cache",
        "model",
        "tokens",
        "hours",
        "hits",
        "hits an hour",
        "pays from",
        "USD",
        "USD saved by hits",
    ),
    "net USD",
)
_SECONDS_AN_HOUR = 3600


def caches(
    start: Annotated[
        str | None, typer.Option(help=f"First instant {INSTANT}. [default: this month's, UTC]")
    ] = None,
    end: Annotated[
        str | None, typer.Option(help=f"Instant {INSTANT}, itself excluded. [default: now]")
    ] = None,
    project: OneProject = None,
    time_zone: Annotated[
        str | None, typer.Option(help="Whose days and months, such as Europe/Vienna. [default: UTC]")
    ] = None,
    form: InForm = Format.TABLE,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what each cache has cost and what its hits have saved, the greatest loss first."""
    with open_database(load_settings()) as database, database.read() as session:
        now = instant(session, SystemClock())
        project_id = one_project_id(session, project)
        query = parse_query(
            start=start, end=end, group_by=SUBJECTS, zone=time_zone, project_id=project_id, now=now
        )
        made = cache_report(session, query, now)
        shown = list(cache_figures(session, made.lines, now))
        names = project_names(session)
    if as_json or form is Format.JSON:
        print_json(cache_report_json(made, shown))
    elif form is Format.CSV:
        print_csv(cache_report_csv(shown), made.whole.notes)
    else:
        _print(made, shown, names)


def _print(made: CacheReport, shown: Iterable[CacheFigures], names: Mapping[str, str]) -> None:
    period = made.whole.query.period
    title = f"Caches from {instant_text(period.start)} to {instant_text(period.end)}"
    print_table(title, _COLUMNS, (_row(each, names) for each in shown), numbers=8)
    lost = sum(line.net_nano_usd for line in made.losing)
    typer.echo(
        f"Caches that cost more than they saved: {len(made.losing)} of {len(made.lines)}, by {usd(-lost)} USD."
    )
    for note in made.whole.notes:
        typer.echo(note)


def _row(figures: CacheFigures, names: Mapping[str, str]) -> Sequence[str]:
    line = figures.line
    to_keep = rounded(figures.hits_per_hour_to_keep)
    per_hour = rounded(figures.hits_per_hour)
    return (
        names.get(line.project_id, line.project_id),
        line.cache_id,
        figures.model,
        f"{figures.token_count:,}",
        f"{figures.kept_seconds / _SECONDS_AN_HOUR:,.2f}",
        f"{line.sums.hits:,}",
        "" if per_hour is None else f"{per_hour:,}",
        "never" if to_keep is None else f"{to_keep:,}",
        usd(line.cost_nano_usd),
        usd(line.hits_saved_nano_usd),
        usd(line.net_nano_usd),
    )
