"""`headstart billing`: the bill of a period, and the prices it is made with."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from billing.meters import Meter
from billing.periods import parse_period
from billing.price_book import Price
from billing.prices import list_prices
from billing.report import Line, Report, report as make_report
from billing.report_json import report_json
from cli.database import open_database
from cli.tables import instant_text, print_json, print_table, usd
from core.clock import SystemClock, instant
from core.settings import load_settings
from models.project import get_project_named, list_projects

INSTANT = "with its offset, such as 2026-01-31T00:00:00Z"

app = typer.Typer(help="Show the bill and the prices.", no_args_is_help=True)


@app.command()
def report(
    start: Annotated[
        str | None, typer.Option(help=f"First instant {INSTANT}. [default: this month's, UTC]")
    ] = None,
    end: Annotated[
        str | None, typer.Option(help=f"Instant {INSTANT}, itself excluded. [default: now]")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Only this project, by name or id.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON that the API answers.")] = False,
) -> None:
    """Show what projects owe, by cache and by meter."""
    with open_database(load_settings()) as database, database.read() as session:
        now = instant(session, SystemClock())
        period = parse_period(start, end, now)
        project_id = None if project is None else get_project_named(session, project).id
        made = make_report(session, start=period.start, end=period.end, now=now, project_id=project_id)
        names = {each.id: each.name for each in list_projects(session)}
    if as_json:
        print_json(report_json(made))
        return
    title = f"Bill from {instant_text(made.start)} to {instant_text(made.end)}"
    columns = ("project", "cache", "meter", "quantity", "USD")
    print_table(title, columns, _report_rows(made, names), numbers=2)


@app.command()
def prices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print a price book, to be changed and used.")
    ] = False,
) -> None:
    """Show the stored prices, those to come included."""
    if as_json and as_toml:
        raise typer.BadParameter("choose one", param_hint="--json, --toml")
    with open_database(load_settings()) as database, database.read() as session:
        stored = list_prices(session)
    if as_json:
        print_json([_price_json(price) for price in stored])
    elif as_toml:
        typer.echo("\n".join(map(_price_toml, stored)), nl=False)
    else:
        rows = [
            (
                price.model,
                price.meter,
                instant_text(price.effective_from),
                usd(price.nano_usd_per_million),
                _unit(price),
            )
            for price in stored
        ]
        print_table("Prices", ("model", "meter", "from", "USD", "per million"), rows, numbers=2)


def _report_rows(made: Report, names: dict[str, str]) -> Iterator[Sequence[str]]:
    for project in made.projects:
        name = names.get(project.project_id, project.project_id)
        for cache in project.caches:
            yield from _line_rows(name, cache.cache_id or "(no cache)", cache.lines)
        yield (name, "all", "", "", usd(project.amount_nano_usd))
        yield ()
    yield from _line_rows("all", "all", made.lines)
    yield ("all", "all", "all", "", usd(made.amount_nano_usd))


def _line_rows(project: str, cache: str, lines: Sequence[Line]) -> Iterator[Sequence[str]]:
    for line in lines:
        if line.quantity:
            yield (project, cache, line.meter, f"{line.quantity:,}", usd(line.amount_nano_usd))
        if line.implicit_quantity:
            yield (project, cache, "- implicit, of these", f"{line.implicit_quantity:,}", "")


def _unit(price: Price) -> str:
    return "token-hours" if price.meter is Meter.CACHE_STORAGE_TOKEN_SECONDS else "tokens"


def _price_json(price: Price) -> dict[str, object]:
    return {
        "model": price.model,
        "meter": price.meter,
        "effectiveFrom": instant_text(price.effective_from),
        "nanoUsdPerMillion": price.nano_usd_per_million,
    }


def _price_toml(price: Price) -> str:
    return (
        "[[price]]\n"
        f"model = {json.dumps(price.model, ensure_ascii=False)}\n"
        f"meter = {json.dumps(price.meter)}\n"
        f"nano_usd_per_million = {price.nano_usd_per_million:_}\n"
        f"effective_from = {instant_text(price.effective_from)}\n"
    )
