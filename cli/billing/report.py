"""`headstart billing report`: the bill of a period as a table, CSV or JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from billing.asking import parse_query
from billing.money import usd
from billing.report import Report, Subject, Sums, report as make_report
from billing.report_csv import report_csv
from billing.report_json import columns, report_json, zone_name
from cli.billing.options import (
    AsJson,
    Format,
    InForm,
    OneProject,
    one_project_id,
    print_csv,
    project_names,
)
from cli.database import open_database
from cli.tables import instant_text, print_json, print_table
from core.clock import SystemClock, instant
from core.settings import load_settings

INSTANT = "with its offset, such as 2026-01-31T00:00:00Z, or a day or month: 2026-01-31, 2026-01"


def report(
    start: Annotated[
        str | None, typer.Option(help=f"First instant {INSTANT}. [default: this month's, UTC]")
    ] = None,
    end: Annotated[
        str | None, typer.Option(help=f"Instant {INSTANT}, itself excluded. [default: now]")
    ] = None,
    project: OneProject = None,
    by: Annotated[
        str,
        typer.Option(
            help="What to group by, separated by commas: project, key, cache, model; hour, day or month."
        ),
    ] = "project,cache",
    time_zone: Annotated[
        str | None, typer.Option(help="Whose days and months, such as Europe/Vienna. [default: UTC]")
    ] = None,
    form: InForm = Format.TABLE,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what projects owe, by whatever you group it, and what caching saved them."""
    with open_database(load_settings()) as database, database.read() as session:
        now = instant(session, SystemClock())
        project_id = one_project_id(session, project)
        words = [word.strip() for word in by.split(",") if word.strip()]
        query = parse_query(
            start=start, end=end, group_by=words, zone=time_zone, project_id=project_id, now=now
        )
        made = make_report(session, query, now)
        names = project_names(session)
    if as_json or form is Format.JSON:
        print_json(report_json(made))
    elif form is Format.CSV:
        print_csv(report_csv(made), made.notes)
    else:
        _print(made, names)


def _print(made: Report, names: Mapping[str, str]) -> None:
    period = made.query.period
    title = f"Bill from {instant_text(period.start)} to {instant_text(period.end)}"
    if made.query.bucket is not None:
        title += f", time zone {zone_name(made.query)}"
    heads = [*columns(made.query), "meter", "quantity", "USD", "USD without a cache", "USD saved"]
    print_table(title, heads, _rows(made, names), numbers=4)
    total = made.total
    rate = "" if total.hit_rate is None else f" Token hit rate: {total.hit_rate:.1%}."
    verb = "saved" if total.saved_nano_usd >= 0 else "cost more than it saved:"
    typer.echo(f"Caching {verb} {usd(abs(total.saved_nano_usd))} USD. Hits: {total.hits:,}.{rate}")
    for note in made.notes:
        typer.echo(note)


def _rows(made: Report, names: Mapping[str, str]) -> Iterator[Sequence[str]]:
    heads = columns(made.query)
    for group, sums in made.groups.items():
        cells = [_cell(head, value, names) for head, value in zip(heads, group, strict=True)]
        yield from _lines(cells, sums)
        if heads:
            yield (*cells, *_all(sums))
            yield ()
    all_ = ["all" for _ in heads]
    if heads:
        yield from _lines(all_, made.total)
    yield (*all_, *_all(made.total))


def _lines(cells: Sequence[str], sums: Sums) -> Iterator[Sequence[str]]:
    for meter, line in sums.lines.items():
        if line.quantity:
            amounts = usd(line.amount_nano_usd), usd(line.without_cache_nano_usd)
            yield (*cells, meter, f"{line.quantity:,}", *amounts, "")


def _all(sums: Sums) -> Sequence[str]:
    """The last line of a group: in the place of a quantity its hits, and how much of its prompts was read."""
    hits = "" if not sums.hits else f"{sums.hits:,} hits" if sums.hits > 1 else "1 hit"
    read = "" if not sums.hit_rate else f"{sums.hit_rate:.1%} read"
    amounts = sums.amount_nano_usd, sums.without_cache_nano_usd, sums.saved_nano_usd
    return ("all", ", ".join(filter(None, (hits, read))), *map(usd, amounts))


def _cell(head: str, value: str, names: Mapping[str, str]) -> str:
    if head == Subject.PROJECT:
        return names.get(value, value)
    return value or "(no cache)"
