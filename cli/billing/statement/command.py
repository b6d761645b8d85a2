"""`headstart billing statement`: a project's month as one HTML file with plots."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from billing.money import usd
from billing.periods import parse_zone
from billing.statement import Statement, statement as make_statement
from cli.database import open_database
from core.clock import SystemClock, instant
from core.errors import PackageMissing
from core.settings import load_settings
from models.project import get_project_named


def statement(
    project: Annotated[str, typer.Option(help="The project, by name or id.")],
    month: Annotated[str, typer.Option(help="The month, such as 2026-01.")],
    output: Annotated[Path, typer.Option(help="The HTML file to write; one that is there is replaced.")],
    time_zone: Annotated[
        str | None, typer.Option(help="Whose month and days, such as Europe/Vienna. [default: UTC]")
    ] = None,
) -> None:
    """Write a project's statement of a month: figures to the nano, and plots, in one file that needs no other."""
    _check_plots()
    with open_database(load_settings()) as database, database.read() as session:
        now = instant(session, SystemClock())
        of = get_project_named(session, project)
        made = make_statement(session, of, month, parse_zone(time_zone), now)
    output.write_text(_written(made), encoding="utf-8")
    typer.echo(f"{output}: {month} of {of.name}, {usd(made.sums.amount_nano_usd)} USD.")


def _check_plots() -> None:
    """Say at once where what draws is missing. No other command needs it, so it is imported by this one alone."""
    if find_spec("matplotlib") is None:
        raise PackageMissing(
            "A statement's plots are drawn by matplotlib, which is not installed. In the checkout: "
            '.venv/bin/pip install -c constraints.txt -e ".[statement]"',
            metadata={"package": "matplotlib"},
        )


def _written(made: Statement) -> str:
    from cli.billing.statement.page import render  # noqa: PLC0415 - see _check_plots
    from cli.billing.statement.plots import draw_all  # noqa: PLC0415

    return render(made, draw_all(made))
