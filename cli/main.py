"""The `headstart` command. A refusal ends with status 1 and one message on stderr, wrong usage with 2."""

import gc
import importlib
from types import ModuleType
from typing import Any

import typer
from sqlalchemy.exc import DBAPIError
from typer.core import TyperGroup

from cli import keys, migrate, models, projects
from cli.billing.app import app as billing
from core.errors import AppError


class RefusingGroup(TyperGroup):
    """Tells a refusal in words, where an unforeseen error shows its traceback."""

    def invoke(self, ctx: Any) -> Any:  # Typer exports no type for its contexts
        try:
            return super().invoke(ctx)
        except AppError as error:
            message = error.message
        except OSError as error:
            message = f"{error.filename or 'The operating system'}: {error.strerror or error}."
        except DBAPIError as error:
            message = f"The database cannot be used: {error.orig}. Check HEADSTART_DATA_DIR and HEADSTART_DATABASE_URL."
        typer.echo(f"Error: {message}", err=True)
        raise typer.Exit(1)


app = typer.Typer(
    name="headstart",
    help="Self-hosted context caching with Gemini's API.",
    cls=RefusingGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # they may hold keys and prompts
)
app.add_typer(keys.app, name="keys")
app.add_typer(projects.app, name="projects")
app.add_typer(billing, name="billing")
app.add_typer(models.app, name="models")
app.add_typer(migrate.app, name="migrate")


def _add_later(name: str, module: str, summary: str) -> None:
    """Add the command that is the function `name` of a module, which is imported only once it is called.

    These modules bring in the engine, and with it torch: too slow for everything else, and not installed everywhere.
    """

    def run(context: typer.Context) -> None:
        alone = typer.Typer(add_completion=False)
        alone.command()(getattr(_import_large(module), name))
        command = typer.main.get_command(alone)
        status = command.main(context.args, prog_name=f"headstart {name}", standalone_mode=False)
        raise typer.Exit(status or 0)

    takes_anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(name, help=summary, context_settings=takes_anything)(run)


def _import_large(module: str) -> ModuleType:
    """Import with the garbage collector at rest: looking at thousands of modules again and again takes it seconds."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()  # what was imported stays, and is not looked at later either
        gc.enable()


_add_later("serve", "cli.serve", "Start the embedded server: API, engine and database in one process.")
_add_later(
    "demo",
    "cli.demo.command",
    "Cache a document, ask about it with and without the cache, and show the bill.",
)
