"""`headstart billing quotas`: how many tokens a project may keep in caches, where that is not what the server says."""

from typing import Annotated

import typer

from billing.spending_json import quota_json
from cli.billing.options import Json, NameOrId, OneProject, one_project_id, project_names
from cli.database import open_database
from cli.tables import print_json, print_table
from core.errors import InvalidArgument, LimitNotFound
from core.settings import load_settings
from models.project import get_project_named
from models.token_quota import ANY_MODEL, TokenQuota, list_token_quotas, put_token_quota, remove_token_quota

MOST_TOKENS = 2**62
Model = Annotated[str, typer.Option(help="Only caches of this model, by its served name; * is each model.")]

app = typer.Typer(
    help="Show, set and remove quotas of cached tokens that differ from the server's.", no_args_is_help=True
)


@app.command("list")
def list_some(
    project: OneProject = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the quotas; a project and model without one has HEADSTART_MAX_CACHED_TOKENS_PER_PROJECT."""
    with open_database(load_settings()) as database, database.read() as session:
        project_id = one_project_id(session, project)
        found = list_token_quotas(session, project_id)
        names = project_names(session)
    if as_json:
        print_json([quota_json(each) for each in found])
        return
    rows = [(names[each.project_id], each.model, f"{each.max_cached_tokens:,}") for each in found]
    print_table("Quotas of cached tokens", ("project", "model", "tokens"), rows, numbers=1)


@app.command("set")
def set_(
    project: NameOrId,
    tokens: Annotated[int, typer.Argument(help="Most tokens in all live caches of the model.")],
    model: Model = ANY_MODEL,
    *,
    as_json: Json = False,
) -> None:
    """Give a project a quota of its own; a server that runs acts upon it with the next create. No cache is ended."""
    if not 0 <= tokens <= MOST_TOKENS:
        raise InvalidArgument(f"tokens must be from 0 to {MOST_TOKENS}, not {tokens}.", field="tokens")
    if not model or model != model.strip() or model.startswith("models/"):
        raise InvalidArgument(
            f"model must be a served model's name without 'models/', or {ANY_MODEL}, not {model[:64]!r}.",
            field="model",
        )
    with open_database(load_settings()) as database, database.write() as session:
        owner = get_project_named(session, project)
        quota = TokenQuota(project_id=owner.id, model=model, max_cached_tokens=tokens)
        put_token_quota(session, quota)
    if as_json:
        print_json(quota_json(quota))
    else:
        typer.echo(f"{owner.name} may keep {tokens:,} tokens in caches of {_words(model)}.")


@app.command()
def remove(project: NameOrId, model: Model = ANY_MODEL) -> None:
    """Take a project's own quota away: the server's holds again."""
    with open_database(load_settings()) as database, database.write() as session:
        owner = get_project_named(session, project)
        if not remove_token_quota(session, owner.id, model):
            raise LimitNotFound(
                f"{owner.name} has no quota of its own for {_words(model)}. `headstart billing quotas list` shows them.",
                field="model",
            )
    typer.echo(f"{owner.name} has the server's quota for {_words(model)}.")


def _words(model: str) -> str:
    return "each model" if model == ANY_MODEL else f"model {model}"
