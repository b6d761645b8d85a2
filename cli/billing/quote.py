"""`headstart billing quote`: what a cache would cost, before it is made."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from billing.money import usd
from billing.price import ANY
from billing.prices import load_prices
from billing.quote import Plan, quote as make_quote
from billing.quote_json import quote_json
from cli.database import open_database
from cli.server import ServerClient, default_url
from cli.tables import print_json, print_table
from core.clock import SystemClock, instant
from core.errors import InvalidArgument
from core.settings import Settings, load_settings
from models.project import get_project_named

ROUTE = "/headstart/v1/billing/quote"


def quote(
    hits: Annotated[int, typer.Option(min=0, help="How many requests are to name the cache.")],
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the cache. No server is asked.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Text to cache, as the system instruction; a running server counts its tokens."),
    ] = None,
    ttl: Annotated[
        int | None, typer.Option(min=1, help="Life in seconds. [default: HEADSTART_DEFAULT_TTL_SECONDS]")
    ] = None,
    suffix_tokens: Annotated[int, typer.Option(min=0, help="Tokens that each prompt adds to the cache.")] = 0,
    output_tokens: Annotated[int, typer.Option(min=0, help="Tokens of each answer.")] = 0,
    model: Annotated[str | None, typer.Option(help="The model. [default: the served one]")] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Whose prices, by name or id. [default: everybody's; with a key, its own]"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Where the server answers. [default: HEADSTART_HOST and _PORT]")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="HEADSTART_KEY", help="For --file: a key of the project, or an operator's with --project."
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON that the API answers.")] = False,
) -> None:
    """Say what a cache would cost, what it would save, and from how many hits on it pays."""
    if (tokens is None) == (file is None):
        raise typer.BadParameter("give one of them", param_hint="--tokens, --file")
    settings = load_settings()
    use = {"suffixTokens": suffix_tokens, "outputTokens": output_tokens}
    seconds = _life(settings, ttl)
    if tokens is not None:
        plan = {"tokenCount": tokens, "expectedHits": hits} | use
        made = _from_prices(settings, plan, seconds, model, project)
    else:
        assert file is not None
        if not key:
            raise InvalidArgument(
                "A server counts tokens for those who have a key: give one with --key or HEADSTART_KEY.",
                field="key",
            )
        server = ServerClient(default_url(settings) if url is None else url, key)
        body = {
            "expectedHits": hits,
            "ttl": f"{seconds}s",
            "systemInstruction": {"parts": [{"text": _read(file)}]},
        }
        made = _from_server(server, body | use, model, project)
    if as_json:
        print_json(made)
    else:
        _print(made)


def _life(settings: Settings, ttl: int | None) -> int:
    seconds = settings.default_ttl_seconds if ttl is None else ttl
    if seconds > settings.max_ttl_seconds:
        raise InvalidArgument(
            f"ttl may be at most {settings.max_ttl_seconds} seconds (HEADSTART_MAX_TTL_SECONDS).", field="ttl"
        )
    return seconds


def _from_prices(
    settings: Settings, use: dict[str, int], seconds: int, model: str | None, project: str | None
) -> dict[str, Any]:
    from workers.engine.loading.source import served_name  # noqa: PLC0415 - other commands need no engine

    with open_database(settings) as database, database.read() as session:
        start = instant(session, SystemClock())
        plan = Plan(
            project_id=ANY if project is None else get_project_named(session, project).id,
            model=served_name(settings) if model is None else model.removeprefix("models/"),
            token_count=use["tokenCount"],
            start=start,
            end=start + timedelta(seconds=seconds),
            hits=use["expectedHits"],
            suffix_tokens=use["suffixTokens"],
            output_tokens=use["outputTokens"],
        )
        return quote_json(make_quote(plan, load_prices(session)))


def _from_server(
    server: ServerClient, body: dict[str, Any], model: str | None, project: str | None
) -> dict[str, Any]:
    if model is None:
        model = server.get("/v1beta/models")["models"][0]["name"]
    query = "" if project is None else "?" + urlencode({"project": project})
    return server.post(ROUTE + query, body | {"model": model})


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} is no UTF-8 text; only text can be cached.", field="file") from error


def _print(made: dict[str, Any]) -> None:
    title = f"{made['model']}: {made['tokenCount']:,} tokens kept for {made['seconds']:,} seconds, hit {made['hits']:,} times"
    print_table(title, ("meter", "quantity", "USD", "USD without a cache"), _rows(made), numbers=3)
    typer.echo(
        "The bill is this for the seconds that the cache lives, and never more unless it is extended or a price changes."
    )
    saved = made["savedNanoUsd"]
    verb = "saves" if saved >= 0 else "costs more than it saves:"
    typer.echo(f"The cache {verb} {usd(abs(saved))} USD.")
    if made["breakEvenHits"] is None:
        typer.echo("It never pays: reading from it costs what computing does.")
        return
    typer.echo(f"It pays from {made['breakEvenHits']:,} hits on.")
    per_hour = made["breakEvenHitsPerHour"]
    if per_hour is not None:
        typer.echo(f"Keeping it longer pays with {per_hour:,} hits an hour.")


def _rows(made: dict[str, Any]) -> Iterator[Sequence[str]]:
    for line in made["meters"]:
        if line["quantity"]:
            amounts = usd(line["amountNanoUsd"]), usd(line["withoutCacheNanoUsd"])
            yield (line["meter"], f"{line['quantity']:,}", *amounts)
    yield ()
    yield ("all", "", usd(made["amountNanoUsd"]), usd(made["withoutCacheNanoUsd"]))
