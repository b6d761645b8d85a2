"""How Alembic meets the tables: on the connection it is handed, else on the database of the settings."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection, Enum
from sqlalchemy.types import TypeDecorator

import models.tables  # noqa: F401 -- makes every table known to Base
from core.settings import load_settings
from models.base import Base
from models.opening import sole_home


def migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_item=render_plainly,
        compare_type=True,
        compare_server_default=True,
        render_as_batch=connection.dialect.name == "sqlite",  # SQLite changes a column by copying its table
    )
    with context.begin_transaction():
        context.run_migrations()


def render_plainly(kind: str, item: object, _context: Any) -> str | Literal[False]:
    """Write a column's type without our own classes: a migration must mean the same when those have changed."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    if kind == "type" and isinstance(item, Enum):
        return f"sa.String(length={item.length})"
    return False


handed = context.config.attributes.get("connection")
if handed is not None:
    migrate(handed)
else:
    with sole_home(load_settings(), pool_size=1) as home, home.database.write() as session:
        migrate(session.connection())
