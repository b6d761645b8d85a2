"""Inserts that meet rows which are there already, on either database."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from models.base import Base

Rows = Sequence[Mapping[str, Any]]


def insert_unless_there(session: Session, kind: type[Base], rows: Rows, told: str) -> list[Any]:
    """Insert rows but those that break a rule of uniqueness; gives the column `told` of each that was inserted."""
    if not rows:
        return []
    table = _table(kind)
    statement = _insert(session, table).on_conflict_do_nothing().returning(table.c[told])
    return list(session.scalars(statement, rows))


def insert_or_add(session: Session, kind: type[Base], rows: Rows, sums: Sequence[str]) -> None:
    """Insert rows; where the primary key is there already, add the columns `sums` to what it holds."""
    if not rows:
        return
    table = _table(kind)
    statement = _insert(session, table)
    added: dict[str, ColumnElement[Any]] = {name: table.c[name] + statement.excluded[name] for name in sums}
    key = [column.name for column in table.primary_key]
    session.execute(statement.on_conflict_do_update(index_elements=key, set_=added), rows)


def _table(kind: type[Base]) -> Table:
    table = kind.__table__
    assert isinstance(table, Table)
    return table


def _insert(session: Session, table: Table) -> Any:
    """The dialects' inserts have the same clauses and no common type."""
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return (postgresql.insert if is_postgresql else sqlite.insert)(table)
