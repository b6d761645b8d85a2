"""What the database itself refuses, whoever asks: to change the books, and to let two prices hold at once.

Migrations make the same; a test compares.
"""

from collections.abc import Sequence

from sqlalchemy import DDL, Table, event

from models.base import Base

_NO_OVERLAP = (
    "CREATE EXTENSION IF NOT EXISTS btree_gist",  # equality of texts beside overlap of ranges
    (
        "ALTER TABLE prices ADD CONSTRAINT ex_prices_no_overlap EXCLUDE USING gist (project_id WITH =, model WITH =, "
        "meter WITH =, tstzrange(effective_from, effective_to) WITH &&)"
    ),
)
_FUNCTION = (
    "CREATE OR REPLACE FUNCTION headstart_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'what is on the books stays as it is: %%', TG_TABLE_NAME; END $$"
)


def keep_prices_apart(prices: type[Base]) -> None:
    """Let no two prices of one project, model and meter hold at one instant, on PostgreSQL."""
    _after_create(prices, "postgresql", _NO_OVERLAP)


def keep_rows(kept: type[Base], condition: str = "TRUE", *, numbered: str | None = None) -> None:
    """Let no row that meets the condition, which is about OLD, be changed or removed.

    numbered: a column that the database itself counts; no row is inserted with a number that is there. SQLite's REPLACE tells
    the other triggers of what it removes only on connections that ask for that, as ours do.
    """
    table = kept.__tablename__
    refused = {"UPDATE": condition, "DELETE": condition}
    if numbered is not None:
        is_there = f"SELECT 1 FROM {table} WHERE {numbered} = NEW.{numbered}"  # noqa: S608 - our own names
        refused["INSERT"] = f"EXISTS ({is_there})"
    _after_create(
        kept,
        "sqlite",
        [
            f"CREATE TRIGGER {table}_refuse_{operation.lower()} BEFORE {operation} ON {table} WHEN {when} "
            f"BEGIN SELECT RAISE(ABORT, 'what is on the books stays as it is: {table}'); END"
            for operation, when in refused.items()
        ],
    )
    _after_create(
        kept,
        "postgresql",
        [
            _FUNCTION,
            *(
                f"CREATE TRIGGER {table}_refuse_{operation.lower()} BEFORE {operation} ON {table} FOR EACH ROW "
                f"WHEN ({condition}) EXECUTE FUNCTION headstart_refuse()"
                for operation in ("UPDATE", "DELETE")
            ),
            f"CREATE TRIGGER {table}_refuse_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION headstart_refuse()",
        ],
    )


def _after_create(kind: type[Base], dialect: str, statements: Sequence[str]) -> None:
    table = kind.__table__
    assert isinstance(table, Table)
    for statement in statements:
        ddl: DDL = DDL(statement)  # type: ignore[no-untyped-call]
        event.listen(table, "after_create", ddl.execute_if(dialect=dialect))
