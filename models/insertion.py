"""Inserts that meet rows which are there already, on either database."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, bindparam, cast, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from models.base import Base

Rows = Sequence[Mapping[str, Any]]


def insert_unless_there(
    session: Session, kind: type[Base], rows: Rows, told: Sequence[str]
) -> Sequence[Row[Any]]:
    """Insert rows but those that break a rule of uniqueness; gives the columns `told` of each that was inserted.

    All rows have the same columns.
    """
    if not rows:
        return []
    table = _table(kind)
    answers = [table.c[name] for name in told]
    if not _is_postgresql(session):
        return session.execute(sqlite.insert(table).on_conflict_do_nothing().returning(*answers), rows).all()
    names, source = _as_arrays(table, rows)
    statement = postgresql.insert(table).from_select(names, source).on_conflict_do_nothing()
    return session.execute(statement.returning(*answers)).all()


def insert_or_add(session: Session, kind: type[Base], rows: Select[Any], sums: Sequence[str]) -> None:
    """Insert the rows of a query; where the primary key is there already, add the columns `sums` to what it holds."""
    table = _table(kind)
    names = [column.name for column in rows.selected_columns]
    # The dialects' inserts have the same clauses and no common type.
    insert: Any = postgresql.insert if _is_postgresql(session) else sqlite.insert
    statement = insert(table).from_select(names, rows)
    added = {name: table.c[name] + statement.excluded[name] for name in sums}
    key = [column.name for column in table.primary_key]
    session.execute(statement.on_conflict_do_update(index_elements=key, set_=added))


def _as_arrays(table: Table, rows: Rows) -> tuple[list[str], Select[Any]]:
    """The rows as one query of few parameters: an array for each column, and one value where all rows have the same."""
    names = list(rows[0])
    columns: list[ColumnElement[Any]] = []
    for name in names:
        values, kind = [row[name] for row in rows], table.c[name].type
        if len(rows) > 1 and all(value == values[0] for value in values):
            columns.append(cast(bindparam(f"{name}_of_all", values[0], kind), kind))
        else:
            columns.append(func.unnest(bindparam(f"{name}_of_each", values, postgresql.ARRAY(kind))))
    return names, select(*columns)


def _is_postgresql(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def _table(kind: type[Base]) -> Table:
    table = kind.__table__
    assert isinstance(table, Table)
    return table
