"""How results are shown: tables for people, JSON for programs. Figures are never cut off."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_OF_A_FILE = 160


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> None:
    """Print rows of text, the last `numbers` columns aligned as numbers; an empty row is a line across."""
    table = Table()
    for index, column in enumerate(columns):
        is_number = index >= len(columns) - numbers
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        if row:
            table.add_row(*(Text(cell) for cell in row))  # as it is: names may hold what looks like markup
        else:
            table.add_section()
    typer.echo(title)
    Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE, highlight=False).print(table)


def instant_text(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
