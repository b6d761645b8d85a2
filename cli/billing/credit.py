"""`headstart billing credit`: what projects have paid beforehand."""

from typing import Annotated

import typer

from billing.credit import grant as grant_credit, set_prepaid
from billing.money import parse_usd, usd
from billing.spending_json import credit_json
from cli.billing.options import Json, NameOrId, OneProject, one_project_id, project_names
from cli.database import open_database
from cli.tables import print_json, print_table
from core.clock import SystemClock, instant
from core.settings import load_settings
from models.credit import Credit, find_credit, list_credits
from models.project import get_project_named

app = typer.Typer(help="Show and grant credit, which charges use before anything else.", no_args_is_help=True)


@app.command("list")
def list_some(
    project: OneProject = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the credit of all projects that have any."""
    with open_database(load_settings()) as database, database.read() as session:
        project_id = one_project_id(session, project)
        found = list_credits(session, project_id)
        names = project_names(session)
    if as_json:
        print_json([credit_json(each) for each in found])
        return
    columns = ("project", "prepaid", "granted, USD", "used", "held", "left")
    rows = [(names[each.project_id], "yes" if each.is_prepaid else "no", *_figures(each)) for each in found]
    print_table("Credit", columns, rows, numbers=4)


@app.command()
def grant(
    project: NameOrId,
    amount: Annotated[str, typer.Argument(help="USD.")],
    reference: Annotated[
        str,
        typer.Option(
            help="Your name for this grant, such as a payment's number: once more gives nothing twice."
        ),
    ],
    note: Annotated[str | None, typer.Option(help="Why. It is kept with the entry.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Give a project credit."""
    nano = parse_usd(amount, "amount")
    with open_database(load_settings()) as database, database.write() as session:
        owner = get_project_named(session, project)
        entry, is_new = grant_credit(
            session, owner.id, nano, reference, instant(session, SystemClock()), note
        )
        credit = find_credit(session, owner.id)
        assert credit is not None
    if as_json:
        print_json(credit_json(credit) | {"entry": entry.id, "isNew": is_new})
        return
    granted = f"{owner.name} {usd(nano)} USD"
    told = f"grants {granted}" if is_new else f"granted {granted} before, and nothing is given twice"
    typer.echo(f"Entry {entry.id} {told}. {_words(credit)}")


@app.command()
def update(
    project: NameOrId,
    prepaid: Annotated[
        bool | None,
        typer.Option("--prepaid/--no-prepaid", help="Whether requests get 429 that credit does not cover."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Let a project pay beforehand, or not; a server that runs acts upon it at once."""
    if prepaid is None:
        raise typer.BadParameter("say what to change", param_hint="--prepaid, --no-prepaid")
    with open_database(load_settings()) as database, database.write() as session:
        owner = get_project_named(session, project)
        credit = set_prepaid(session, owner.id, is_prepaid=prepaid)
    if as_json:
        print_json(credit_json(credit))
    else:
        typer.echo(f"{owner.name} pays {'beforehand' if prepaid else 'afterwards'}. {_words(credit)}")


def _figures(credit: Credit) -> tuple[str, ...]:
    left = credit.balance_nano_usd - credit.held_nano_usd
    return tuple(map(usd, (credit.granted_nano_usd, credit.used_nano_usd, credit.held_nano_usd, left)))


def _words(credit: Credit) -> str:
    granted, used, held, left = _figures(credit)
    return f"Of {granted} USD {used} are used and {held} held; {left} are left."
