"""Writes docs/statement/sample.html, the statement of a made-up month: .venv/bin/python scripts/sample_statement.py"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import sample_month

from billing.periods import parse_zone
from billing.statement import statement
from cli.billing.statement.page import render
from cli.billing.statement.plots import draw_all
from models.schema import upgrade
from models.session import Database, sqlite_url

SAMPLE = Path(__file__).resolve().parent.parent / "docs" / "statement" / "sample.html"


def main() -> int:
    with TemporaryDirectory() as folder:
        database = Database(sqlite_url(Path(folder) / "sample.sqlite3"), pool_size=1)
        try:
            upgrade(database)
            page = sample_page(database)
        finally:
            database.dispose()
    SAMPLE.parent.mkdir(exist_ok=True)
    SAMPLE.write_text(page, encoding="utf-8")
    print(f"{SAMPLE}: {len(page.encode()):,} bytes")
    return 0


def sample_page(database: Database) -> str:
    """Live through the month in a database without any row, and write its statement."""
    customer = sample_month.live_through(database)
    with database.read() as session:
        made = statement(
            session, customer.project, sample_month.MONTH, parse_zone(None), customer.clock.now()
        )
    return render(made, draw_all(made))


if __name__ == "__main__":
    sys.exit(main())
