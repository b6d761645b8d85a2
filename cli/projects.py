"""`headstart projects`: who owns keys and caches, and gets a bill."""

import re
from typing import Annotated

import typer

from cli.database import open_database
from cli.tables import instant_text, print_json, print_table
from core.clock import SystemClock, instant
from core.errors import InvalidArgument
from core.settings import load_settings
from models.project import Project, create_project, get_project_named, list_projects, update_project

NAME = re.compile(r"(?!proj_)[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # never what looks like an id

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NameOrId = Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id of the project.")]

app = typer.Typer(help="Create, list, show and update projects.", no_args_is_help=True)


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
def list_all(as_json: AsJson = False) -> None:
    """List all projects."""
    with open_database(load_settings()) as database, database.read() as session:
        projects = list_projects(session)
    if as_json:
        print_json([_json(project) for project in projects])
    else:
        _print(*projects)


@app.command()
def show(project: NameOrId, as_json: AsJson = False) -> None:
    """Show one project."""
    with open_database(load_settings()) as database, database.read() as session:
        found = get_project_named(session, project)
    if as_json:
        print_json(_json(found))
    else:
        _print(found)


@app.command()
def update(
    project: NameOrId,
    reuse: Annotated[
        bool | None,
        typer.Option(
            "--reuse/--no-reuse",
            help="Whether its requests read KV that earlier ones left behind, and leave theirs. Caches stay as they are.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a project; a server that runs acts upon it from the next request on."""
    if reuse is None:
        raise typer.BadParameter("say what to change", param_hint="--reuse, --no-reuse")
    with open_database(load_settings()) as database, database.write() as session:
        updated = update_project(session, project, reuses_kv=reuse)
    if as_json:
        print_json(_json(updated))
    else:
        _print(updated)


def _print(*projects: Project) -> None:
    rows = [
        (project.name, project.id, instant_text(project.created_at), "on" if project.reuses_kv else "off")
        for project in projects
    ]
    print_table("Projects", ("name", "id", "created", "reuse"), rows)


def _json(project: Project) -> dict[str, object]:
    return {
        "id": project.id,
        "name": project.name,
        "createdAt": instant_text(project.created_at),
        "reusesKv": project.reuses_kv,
    }
