"""`headstart migrate`: the database's schema. The embedded server upgrades by itself when it starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from core.data_folder import DataFolder, database_path
from core.settings import load_settings
from models import schema
from models.session import Database, sqlite_url

app = typer.Typer(help="Bring the database's schema up to date (without a subcommand: upgrade).")


@app.callback(invoke_without_command=True)
def migrate(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        upgrade()


@app.command()
def upgrade() -> None:
    """Apply all migrations that are missing; make the database where there is none."""
    with _exclusive_database() as database:
        schema.upgrade(database)
        typer.echo(schema.current(database))


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Migration to go back to, or base for an empty database.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take migrations back. What the removed tables and columns hold is lost."""
    if not yes:
        typer.confirm("What the removed tables and columns hold will be lost. Go on?", abort=True)
    with _exclusive_database() as database:
        schema.downgrade(database, revision)
        typer.echo(schema.current(database) or "base")


@app.command()
def current() -> None:
    """Print the migration that the database is at, and whether it is the newest."""
    path = database_path(load_settings().data_dir.expanduser().absolute())
    if not path.is_file():
        typer.echo("none: there is no database yet")
        return
    database = Database(sqlite_url(path), pool_size=1)
    try:
        at = schema.current(database)
    finally:
        database.dispose()
    typer.echo(f"{at or 'base'}{' (newest)' if at == schema.newest() else ''}")


@contextmanager
def _exclusive_database() -> Iterator[Database]:
    """Open the database of a data folder that no server uses."""
    folder = DataFolder.open(load_settings().data_dir)
    try:
        database = Database(sqlite_url(folder.database_path), pool_size=1)
        try:
            yield database
        finally:
            database.dispose()
    finally:
        folder.close()
