"""`headstart billing limits`: what a project, or one of its keys, may spend in a month."""

from collections.abc import Sequence
from typing import Annotated

import typer

from billing.limits import LimitStatus, list_status, remove_limit, set_limit
from billing.money import parse_usd, usd
from billing.spending_json import limit_json
from cli.billing.options import Json, NameOrId, OneProject, one_project_id, project_names
from cli.database import open_database
from cli.tables import print_json, print_table
from core.clock import SystemClock, instant
from core.settings import load_settings
from models.project import get_project_named

Key = Annotated[str | None, typer.Option(help="Only this key of it, by its id.")]

app = typer.Typer(help="Show, set and remove what may be spent in a month of UTC.", no_args_is_help=True)


@app.command("list")
def list_some(
    project: OneProject = None,
    *,
    as_json: Json = False,
) -> None:
    """Show all limits, and how much of each is used this month."""
    with open_database(load_settings()) as database, database.read() as session:
        project_id = one_project_id(session, project)
        found = list_status(session, project_id, instant(session, SystemClock()))
        names = project_names(session)
    if as_json:
        print_json([limit_json(each) for each in found])
        return
    columns = ("project", "key", "month", "soft, USD", "hard, USD", "spent", "held", "left")
    rows = [(names[each.limit.project_id], *_cells(each)) for each in found]
    print_table("Limits", columns, rows, numbers=5)
    for each in found:
        if each.is_soft_reached:
            whose = f"key {each.limit.key_id}" if each.limit.key_id else names[each.limit.project_id]
            typer.echo(f"The soft limit of {whose} is reached in {each.month}.")


@app.command("set")
def set_(
    project: NameOrId,
    hard: Annotated[str | None, typer.Option(help="USD beyond which requests get 429.")] = None,
    soft: Annotated[
        str | None, typer.Option(help="USD beyond which it is told, and nothing is refused.")
    ] = None,
    key: Key = None,
    *,
    as_json: Json = False,
) -> None:
    """Limit what a project, or one of its keys, may spend in a month; what was spent and what runs counts.

    It takes the place of the limit that was there, both amounts of it. A server that runs acts upon it at once.
    """
    amounts = [
        None if text is None else parse_usd(text, name) for name, text in (("hard", hard), ("soft", soft))
    ]
    with open_database(load_settings()) as database, database.write() as session:
        owner = get_project_named(session, project)
        made = set_limit(
            session,
            owner.id,
            key,
            hard_nano_usd=amounts[0],
            soft_nano_usd=amounts[1],
            now=instant(session, SystemClock()),
        )
    if as_json:
        print_json(limit_json(made))
        return
    hard_text, soft_text = _amount(made.limit.hard_nano_usd), _amount(made.limit.soft_nano_usd)
    typer.echo(
        f"{owner.name}{f', key {key}' if key else ''}: hard {hard_text}, soft {soft_text} USD a month."
    )
    typer.echo(f"In {made.month}: {usd(made.spent_nano_usd)} spent, {usd(made.held_nano_usd)} held.")


@app.command()
def remove(project: NameOrId, key: Key = None) -> None:
    """Take the limit of a project, or of one of its keys, away."""
    with open_database(load_settings()) as database, database.write() as session:
        owner = get_project_named(session, project)
        remove_limit(session, owner.id, key)
    typer.echo(f"{owner.name}{f', key {key},' if key else ''} may spend without that limit.")


def _cells(status: LimitStatus) -> Sequence[str]:
    limit, left = status.limit, status.left_nano_usd
    return (
        limit.key_id or "(all)",
        status.month,
        _amount(limit.soft_nano_usd),
        _amount(limit.hard_nano_usd),
        usd(status.spent_nano_usd),
        usd(status.held_nano_usd),
        _amount(left),
    )


def _amount(nano: int | None) -> str:
    return "none" if nano is None else usd(nano)
