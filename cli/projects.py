"""`headstart projects`: who owns keys and caches, and gets a bill."""

import re
from typing import Annotated

import typer

from cli.database import open_database
from cli.tables import instant_text, print_json, print_table
from core.clock import SystemClock, instant
from core.errors import InvalidArgument
from core.settings import load_settings
from models.project import create_project, list_projects

NAME = re.compile(r"(?!proj_)[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # never what looks like an id

app = typer.Typer(help="Create and list projects.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'; at most 63.")],
) -> None:
    """Create a project."""
    if not NAME.fullmatch(name):
        raise InvalidArgument(
            "name must begin with a letter or digit, not with 'proj_', and have at most 63 letters, digits, "
            "'.', '_' and '-'.",
            field="name",
        )
    with open_database(load_settings()) as database, database.write() as session:
        project = create_project(session, name, instant(session, SystemClock()))
    typer.echo(project.id)
    typer.echo(
        f"Project {name} is there. Make a key for it: headstart keys create --project {name}", err=True
    )


@app.command("list")
def list_all(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List all projects."""
    with open_database(load_settings()) as database, database.read() as session:
        projects = list_projects(session)
    if as_json:
        print_json(
            [
                {"id": project.id, "name": project.name, "createdAt": instant_text(project.created_at)}
                for project in projects
            ]
        )
    else:
        rows = [(project.name, project.id, instant_text(project.created_at)) for project in projects]
        print_table("Projects", ("name", "id", "created"), rows)
