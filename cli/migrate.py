"""`headstart migrate`: the database's schema. The embedded server upgrades by itself when it starts."""

from typing import Annotated

import typer

from cli.database import exists, open_as_it_is
from core.settings import load_settings
from models import schema
from models.opening import sole_home

app = typer.Typer(help="Bring the database's schema up to date (without a subcommand: upgrade).")


@app.callback(invoke_without_command=True)
def migrate(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        upgrade()


@app.command()
def upgrade() -> None:
    """Apply all migrations that are missing; make the database where there is none."""
    with sole_home(load_settings(), pool_size=1) as home:
        schema.upgrade(home.database)
        typer.echo(schema.current(home.database))


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Migration to go back to, or base for an empty database.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take migrations back. What the removed tables and columns hold is lost: of a ledger, corrections, credit and closed months, for good."""
    if not yes:
        typer.confirm(
            "What the removed tables and columns hold will be lost; of a ledger, corrections, credit and closed months for good. Go on?",
            abort=True,
        )
    with sole_home(load_settings(), pool_size=1) as home:
        schema.downgrade(home.database, revision)
        typer.echo(schema.current(home.database) or "base")


@app.command()
def current() -> None:
    """Print the migration that the database is at, and whether it is the newest."""
    settings = load_settings()
    if not exists(settings):
        typer.echo("none: there is no database yet")
        return
    with open_as_it_is(settings) as database:
        at = schema.current(database)
    typer.echo(f"{at or 'base'}{' (newest)' if at == schema.newest() else ''}")
