"""`headstart billing prices`: the stored prices, and price books before and while they are made to count."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from billing.meters import Meter
from billing.money import usd
from billing.price import ANY, Price
from billing.price_book import load_price_book
from billing.price_checks import doubts
from billing.price_diff import Change
from billing.prices import list_prices, load_book
from cli.billing.options import Json
from cli.database import open_database
from cli.tables import instant_text, print_json, print_table
from core.clock import SystemClock
from core.settings import load_settings

Book = Annotated[Path, typer.Argument(help="A price book, TOML.")]

app = typer.Typer(help="Show the prices, and check, compare and load price books.", no_args_is_help=True)


@app.command()
def show(
    *,
    as_json: Json = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print a price book, to be changed and loaded.")
    ] = False,
) -> None:
    """Show the stored prices, those to come included."""
    if as_json and as_toml:
        raise typer.BadParameter("choose one", param_hint="--json, --toml")
    with open_database(load_settings()) as database, database.read() as session:
        stored = list_prices(session)
    if as_json:
        print_json([_json(price) for price in stored])
    elif as_toml:
        typer.echo("\n".join(map(_toml, stored)), nl=False)
    else:
        print_table("Prices", _COLUMNS, map(_row, stored), numbers=2)


@app.command()
def check(book: Book, *, as_json: Json = False) -> None:
    """Read a price book and say what is wrong with it, without a database: overlaps, gaps, prices that defy sense.

    What may be meant, and may be a slip, is told beside the prices.
    """
    prices = load_price_book(book).prices
    doubtful = doubts(prices)
    if as_json:
        print_json([_json(price) for price in prices])
    else:
        found = f"{len(doubtful)} to look at" if doubtful else "nothing wrong"
        print_table(f"{book}: {len(prices)} prices, {found}", _COLUMNS, map(_row, prices), numbers=2)
    for doubt in doubtful:
        typer.echo(doubt, err=True)


@app.command()
def diff(book: Book, *, as_json: Json = False) -> None:
    """Show what loading a price book would change. It fails where loading would."""
    with open_database(load_settings()) as database, database.write() as session:
        changes = load_book(session, load_price_book(book), SystemClock())
        session.rollback()
    _print(changes, as_json=as_json)


@app.command()
def load(book: Book, *, as_json: Json = False) -> None:
    """Make a price book count, from now on. Prices in force stay as they are: a book that changes one is refused."""
    with open_database(load_settings()) as database, database.write() as session:
        changes = load_book(session, load_price_book(book), SystemClock())
    _print(changes, as_json=as_json)


_COLUMNS = ("project", "model", "meter", "from", "to", "USD", "per million")


def _print(changes: Sequence[Change], *, as_json: bool) -> None:
    if as_json:
        print_json([{"change": change.kind, **_json(change.price)} for change in changes])
    elif not changes:
        typer.echo("The stored prices are those of the book.")
    else:
        rows = ((change.kind, *_row(change.price)) for change in changes)
        print_table("Changes", ("change", *_COLUMNS), rows, numbers=2)


def _row(price: Price) -> Sequence[str]:
    instants = instant_text(price.effective_from), instant_text(price.effective_to)
    amount = usd(price.nano_usd_per_million)
    return (price.project_id, price.model, price.meter, *instants, amount, _unit(price))


def _unit(price: Price) -> str:
    return "token-hours" if price.meter is Meter.CACHE_STORAGE_TOKEN_SECONDS else "tokens"


def _json(price: Price) -> dict[str, object]:
    return {
        "project": price.project_id,
        "model": price.model,
        "meter": price.meter,
        "effectiveFrom": instant_text(price.effective_from),
        "effectiveTo": instant_text(price.effective_to) or None,
        "nanoUsdPerMillion": price.nano_usd_per_million,
    }


def _toml(price: Price) -> str:
    return "\n".join(_toml_lines(price)) + "\n"


def _toml_lines(price: Price) -> Iterator[str]:
    yield "[[price]]"
    if price.project_id != ANY:
        yield f"project = {json.dumps(price.project_id)}"
    yield f"model = {json.dumps(price.model, ensure_ascii=False)}"
    yield f"meter = {json.dumps(price.meter)}"
    yield f"nano_usd_per_million = {price.nano_usd_per_million:_}"
    yield f"effective_from = {instant_text(price.effective_from)}"
    if price.effective_to is not None:
        yield f"effective_to = {instant_text(price.effective_to)}"
