import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from core.errors import SchemaMismatch
from models.base import Base
from models.schema import check, upgrade
from models.session import Database, sqlite_url
from models.tables import TABLES


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Database]:
    database = Database(sqlite_url(tmp_path / "empty.sqlite3"), pool_size=2)
    yield database
    database.dispose()


def test_upgrading_makes_every_table(empty: Database) -> None:
    upgrade(empty)
    check(empty)
    assert {table.__tablename__ for table in TABLES} < set(_tables(empty))


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    before = _tables(database)
    upgrade(database)
    assert _tables(database) == before


def test_no_table_has_drifted_from_its_migrations(database: Database) -> None:
    with database.read() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_migrations_make_the_very_constraints_of_the_tables(database: Database, empty: Database) -> None:
    """Alembic compares no check constraints; ours carry the invariants."""
    with empty.write() as session:
        Base.metadata.create_all(session.connection())
    migrated = {name: parts for name, parts in _tables(database).items() if name != "alembic_version"}
    assert migrated == _tables(empty)
    assert any("CONSTRAINT ck_" in part for parts in migrated.values() for part in parts)


def test_an_empty_database_is_refused_until_it_is_migrated(empty: Database) -> None:
    with pytest.raises(SchemaMismatch, match="headstart migrate"):
        check(empty)


def test_a_database_of_a_newer_version_is_refused_and_left_alone(database: Database) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'made_tomorrow'"))
    for act in (check, upgrade):
        with pytest.raises(SchemaMismatch, match="made_tomorrow"):
            act(database)


def test_a_migration_that_fails_leaves_nothing(empty: Database) -> None:
    with empty.write() as session:
        session.execute(
            text("CREATE TABLE usage (id TEXT)")
        )  # in the way of the last table of the first migration
    with pytest.raises(Exception, match="usage"):
        upgrade(empty)
    assert set(_tables(empty)) == {"usage"}


def _tables(database: Database) -> dict[str, list[str]]:
    """Every table and index as a sorted list of its parts, whatever their order."""
    with database.read() as session:
        rows = session.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")).all()
    return {
        name: sorted(re.sub(r"\s+", " ", part).strip(" ,") for part in sql.splitlines()) for name, sql in rows
    }
