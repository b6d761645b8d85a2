"""A database in which no rule holds, to see whether the reconciliation finds what was changed there."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.database import unguarded
from billing.verify import verify
from models.session import Database

_RULES = text(
    "SELECT conrelid::regclass::text, conname FROM pg_constraint "
    "WHERE contype IN ('c', 'f') AND connamespace = 'public'::regnamespace"
)


@contextmanager
def lawless(database: Database) -> Iterator[Session]:
    """A write unit without triggers, checks and references, of which nothing stays."""
    with database.write() as session:
        try:
            with session.begin_nested() as all_of_it:
                _lift_rules(session)
                with unguarded(session):
                    yield session
                all_of_it.rollback()
        finally:
            if session.get_bind().dialect.name == "sqlite":
                session.execute(text("PRAGMA ignore_check_constraints = OFF"))


def _lift_rules(session: Session) -> None:
    if session.get_bind().dialect.name == "sqlite":
        session.execute(text("PRAGMA defer_foreign_keys = ON"))
        session.execute(text("PRAGMA ignore_check_constraints = ON"))
        return
    for table, name in session.execute(_RULES).all():
        session.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))


def missed(session: Session, tampering: Iterable[tuple[str, str]], now: datetime) -> list[tuple[str, str]]:
    """Which of the changes, each made by itself, the check that should does not find. A change can be several statements."""
    unseen = []
    for change, check in tampering:
        statements = change
        with session.begin_nested() as unit:
            if session.get_bind().dialect.name == "sqlite":
                statements = statements.replace("+00:00'", "'")
            for statement in statements.split("; "):
                session.execute(text(statement))
            session.expire_all()
            found = [f"{each.check}: {each.what}" for each in verify(session, now)]
            if not any(each.startswith(check) for each in found):
                unseen.append((change, check))
            unit.rollback()
    return unseen
