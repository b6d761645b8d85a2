"""`headstart billing verify`, `post`, `entries`, `correct`, `periods` and `close`: the ledger, and the proof of it."""

from typing import Annotated

import typer

from billing.bookkeeping import keep_books
from billing.closing import close_month
from billing.corrections import correct as correct_entry, correct_amount
from billing.money import usd
from billing.verify import verify as find_faults
from cli.billing.options import Json, OneProject, one_project_id
from cli.database import open_database
from cli.progress import task_progress
from cli.tables import instant_text, print_json, print_table
from core.clock import SystemClock, format_instant, instant
from core.settings import load_settings
from models.billing_period import BillingPeriod, list_periods
from models.ledger_entry import LedgerEntry, list_entries

MOST_ID = 2**63 - 1  # that the database counts to


def verify(*, as_json: Json = False) -> None:
    """Prove that the ledger agrees with what happened, to the nano. Ends with status 1 where anything differs."""
    with open_database(load_settings()) as database, database.read() as session, task_progress() as progress:
        found = list(find_faults(session, instant(session, SystemClock()), progress=progress))
    if as_json:
        print_json({"findings": [{"check": each.check, "what": each.what} for each in found]})
    elif found:
        print_table("The books do not agree", ("check", "what"), [(each.check, each.what) for each in found])
    else:
        typer.echo("Every charge agrees with what happened, to the nano.")
    if found:
        raise typer.Exit(1)


def post() -> None:
    """Post all storage that is due and roll the ledger up, now. A running server does so every minute.

    Ends with status 1 where something has no price, or was posted before with other figures: all else is posted.
    """
    with open_database(load_settings()) as database:
        passed_over = keep_books(database, SystemClock())
    if passed_over:
        print_table("What could not be posted", ("what", "why"), list(passed_over.items()))
        raise typer.Exit(1)
    typer.echo("All that is due is posted.")


def entries(
    project: OneProject = None,
    cache: Annotated[str | None, typer.Option(help="Only this cache, by its id.")] = None,
    after: Annotated[int, typer.Option(min=0, max=MOST_ID, help="Only entries after this one.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 1_000,
    *,
    as_json: Json = False,
) -> None:
    """List entries of the ledger in the order in which they were posted."""
    with open_database(load_settings()) as database, database.read() as session:
        project_id = one_project_id(session, project)
        cache_id = None if cache is None else cache.removeprefix("cachedContents/")
        found = list_entries(session, project_id, after, limit, cache_id)
    if as_json:
        print_json([_entry_json(each) for each in found])
        return
    columns = ("id", "posted", "kind", "project", "cache", "meter", "hour", "quantity", "USD")
    rows = [
        (
            str(each.id),
            instant_text(each.posted_at),
            each.kind,
            each.project_id,
            each.cache_id or "",
            each.meter or "",
            instant_text(each.hour),
            f"{each.quantity:,}",
            usd(each.amount_nano_usd),
        )
        for each in found
    ]
    print_table("Ledger", columns, rows, numbers=2)


def correct(
    entry: Annotated[
        int, typer.Argument(max=MOST_ID, help="The entry, as `headstart billing entries` numbers it.")
    ],
    note: Annotated[str, typer.Option(help="Why. It is kept with the correction.")],
    quantity: Annotated[
        int | None,
        typer.Option(help="What it is to come to, at its price; 0 takes the whole charge back."),
    ] = None,
    amount_nano_usd: Annotated[
        int | None,
        typer.Option(help="What it is to cost, where its price was wrong; its quantity stays."),
    ] = None,
) -> None:
    """Correct the quantity of a charge or its amount: the entry stays, and the difference is billed in the open month."""
    if (quantity is None) == (amount_nano_usd is None):
        raise typer.BadParameter("give one of the two", param_hint="--quantity, --amount-nano-usd")
    with open_database(load_settings()) as database, database.write() as session:
        now = instant(session, SystemClock())
        if quantity is not None:
            made = correct_entry(session, entry, quantity, note, now)
        else:
            assert amount_nano_usd is not None
            made = correct_amount(session, entry, amount_nano_usd, note, now)
    typer.echo(
        f"Entry {made.id} corrects entry {entry} by {made.quantity:,} for {usd(made.amount_nano_usd)} USD."
    )


def periods(*, as_json: Json = False) -> None:
    """List the months, which of them are closed, and what those came to."""
    with open_database(load_settings()) as database, database.read() as session:
        found = list_periods(session)
    if as_json:
        print_json([_period_json(each) for each in found])
    else:
        columns = ("month", "state", "closed", "USD")
        print_table("Billing periods", columns, map(_period_row, found), numbers=1)


def close(month: Annotated[str, typer.Argument(help="The month, such as 2026-01, in UTC.")]) -> None:
    """Close a month that is over: its bill stays as it is, and what turns up late is billed as a correction."""
    with open_database(load_settings()) as database, database.write() as session:
        closed = close_month(session, month, instant(session, SystemClock()))
    typer.echo(f"{closed.month} is closed at {usd(closed.amount_nano_usd or 0)} USD.")


def _period_row(period: BillingPeriod) -> tuple[str, ...]:
    amount = "" if period.amount_nano_usd is None else usd(period.amount_nano_usd)
    return (period.month, period.state, instant_text(period.closed_at), amount)


def _period_json(period: BillingPeriod) -> dict[str, object]:
    closed_at = None if period.closed_at is None else format_instant(period.closed_at)
    return {
        "month": period.month,
        "state": period.state,
        "closedAt": closed_at,
        "amountNanoUsd": period.amount_nano_usd,
    }


def _entry_json(entry: LedgerEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "project": entry.project_id,
        "kind": entry.kind,
        "debit": entry.debit,
        "credit": entry.credit,
        "meter": entry.meter,
        "priceId": entry.price_id,
        "corrects": entry.corrects_id,
        "key": entry.key_id,
        "cache": entry.cache_id,
        "model": entry.model,
        "hour": format_instant(entry.hour),
        "period": entry.period,
        "quantity": entry.quantity,
        "amountNanoUsd": entry.amount_nano_usd,
        "withoutCacheNanoUsd": entry.without_cache_nano_usd,
        "postedAt": format_instant(entry.posted_at),
        "dedupeKey": entry.dedupe_key,
        "note": entry.note,
    }
