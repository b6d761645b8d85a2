"""`headstart billing`: what projects owe, the prices it is made with, and the proof that it is right."""

import typer

from cli.billing import books, cache_report, credit, limits, prices, quotas, quote, report
from cli.billing.statement import command as statement

app = typer.Typer(help="Show the bill, the prices and the ledger, and prove them.", no_args_is_help=True)
app.command("report")(report.report)
app.command("statement")(statement.statement)
app.command("caches")(cache_report.caches)
app.command("quote")(quote.quote)
app.add_typer(prices.app, name="prices")
app.add_typer(limits.app, name="limits")
app.add_typer(credit.app, name="credit")
app.add_typer(quotas.app, name="quotas")
app.command("verify")(books.verify)
app.command("post")(books.post)
app.command("entries")(books.entries)
app.command("correct")(books.correct)
app.command("periods")(books.periods)
app.command("close")(books.close)
