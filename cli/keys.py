"""`headstart keys`: API keys of projects and of operators. A key is shown when it is made, and never again."""

import re
from typing import Annotated

import typer

from cli.database import open_database
from cli.key_making import load_secret, make_key
from cli.tables import instant_text, print_json, print_table
from core.clock import SystemClock, instant
from core.data_folder import secret_path
from core.errors import InvalidArgument
from core.settings import load_settings
from models.api_key import ApiKey, Scope, list_api_keys, revoke_api_key
from models.project import Project, get_project_named, list_projects

NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,63}")
DEFAULT_SCOPES = f"{Scope.CACHES},{Scope.GENERATE},{Scope.BILLING}"

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "unnamed",
    project: Annotated[
        str | None, typer.Option(help="Project of the key, by name or id. [default: default]")
    ] = None,
    scopes: Annotated[
        str | None, typer.Option(help=f"What it may do: {', '.join(Scope)}. [default: {DEFAULT_SCOPES}]")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Make a key of the operator, of no project.")
    ] = False,
) -> None:
    """Make a key and print it, once."""
    if operator and (project is not None or scopes is not None):
        raise typer.BadParameter("an operator's key has no project and no scopes", param_hint="--operator")
    if not NAME.fullmatch(name):
        raise InvalidArgument("name must have 1 to 63 characters, none of them a control one.", field="name")
    granted = frozenset(Scope) if operator else _parse_scopes(DEFAULT_SCOPES if scopes is None else scopes)
    settings = load_settings()
    with open_database(settings) as database, database.write() as session:
        project_id = (
            None if operator else get_project_named(session, "default" if project is None else project).id
        )
        secret = load_secret(secret_path(settings.data_dir.expanduser().absolute()), session)
        key = make_key(session, SystemClock(), secret, project_id=project_id, name=name, scopes=granted)
    typer.echo(key)
    typer.echo("This is the key; it cannot be shown again.", err=True)


@app.command("list")
def list_some(
    project: Annotated[str | None, typer.Option(help="Only this project's, by name or id.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List keys, revoked ones included."""
    with open_database(load_settings()) as database, database.read() as session:
        owners: list[Project | None] = [None, *list_projects(session)]
        if project is not None:
            owners = [get_project_named(session, project)]
        found = [
            (owner, key)
            for owner in owners
            for key in list_api_keys(session, None if owner is None else owner.id)
        ]
    if as_json:
        print_json([_json(owner, key) for owner, key in found])
        return
    rows = [
        (
            key.id,
            "(operator)" if owner is None else owner.name,
            key.name,
            " ".join(sorted(key.scopes)),
            instant_text(key.created_at),
            instant_text(key.revoked_at),
        )
        for owner, key in found
    ]
    print_table("API keys", ("id", "project", "name", "scopes", "created", "revoked"), rows)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `headstart keys list` shows it.")],
) -> None:
    """End a key at once. It cannot be brought back."""
    with open_database(load_settings()) as database, database.write() as session:
        key = revoke_api_key(session, key_id, instant(session, SystemClock()))
    typer.echo(f"{key.id} is revoked since {instant_text(key.revoked_at)}.")


def _parse_scopes(text: str) -> frozenset[Scope]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in [*Scope]:
            raise typer.BadParameter(
                f"{word!r} is no scope; there are {', '.join(Scope)}", param_hint="--scopes"
            )
    return frozenset(Scope(word) for word in words)


def _json(owner: Project | None, key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "projectId": key.project_id,
        "project": None if owner is None else owner.name,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "createdAt": instant_text(key.created_at),
        "revokedAt": instant_text(key.revoked_at) or None,
    }
