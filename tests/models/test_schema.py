from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, text

from core.errors import SchemaMismatch
from models.base import Base
from models.schema import check, upgrade
from models.session import Database
from models.tables import TABLES
from tests.models.catalogue import described


@pytest.fixture
def empty(empty_url: URL) -> Iterator[Database]:
    database = Database(empty_url, pool_size=2)
    yield database
    database.dispose()


def test_upgrading_makes_every_table(empty: Database) -> None:
    upgrade(empty)
    check(empty)
    assert {table.__tablename__ for table in TABLES} < set(described(empty))


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    before = described(database)
    upgrade(database)
    assert described(database) == before


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
    migrated = {name: parts for name, parts in described(database).items() if name != "alembic_version"}
    assert migrated == described(empty)
    assert any("CONSTRAINT ck_" in part for parts in migrated.values() for part in parts)


def test_an_empty_database_is_refused_until_it_is_migrated(empty: Database) -> None:
    with pytest.raises(SchemaMismatch, match="headstart migrate"):
        check(empty)


def test_a_database_of_a_newer_version_is_refused_and_left_alone(empty: Database) -> None:
    upgrade(empty)
    with empty.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'made_tomorrow'"))
    for act in (check, upgrade):
        with pytest.raises(SchemaMismatch, match="made_tomorrow"):
            act(empty)


def test_a_migration_that_fails_leaves_nothing(empty: Database) -> None:
    with empty.write() as session:
        session.execute(
            text("CREATE TABLE usage (id TEXT)")
        )  # in the way of the last table of the first migration
    with pytest.raises(Exception, match="usage"):
        upgrade(empty)
    assert set(described(empty)) == {"usage"}
