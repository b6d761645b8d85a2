"""What several commands of `headstart billing` are given: the project, by name or id, and in which form they answer."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from models.project import get_project_named, list_projects


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NameOrId = Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id of the project.")]
InForm = Annotated[Format, typer.Option("--format", help="How to print it.")]
AsJson = Annotated[bool, typer.Option("--json", help="The JSON that the API answers: --format json.")]
OneProject = Annotated[str | None, typer.Option(help="Only this project, by name or id.")]


def print_csv(lines: Iterable[str], notes: Iterable[str]) -> None:
    """Print the lines, and what has to be known to read them beside them: on the other stream."""
    for line in lines:
        typer.echo(line, nl=False)
    for note in notes:
        typer.echo(note, err=True)


def one_project_id(session: Session, one_project: str | None) -> str | None:
    """The id of the project that is named; None: of all. Raises ProjectNotFound."""
    return None if one_project is None else get_project_named(session, one_project).id


def project_names(session: Session) -> dict[str, str]:
    """Names by ids, for tables."""
    return {each.id: each.name for each in list_projects(session)}
