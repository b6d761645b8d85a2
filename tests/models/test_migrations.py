"""Migrations on a database in use: down to each of them and up again, nothing is lost that had a place to be."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from alembic import command
from sqlalchemy import URL, inspect

from models import schema
from models.base import Base
from models.session import Database
from tests.models.catalogue import described
from tests.models.populated import populate

REVISIONS = [script.revision for script in schema._script().walk_revisions()]  # the newest first
Content = Mapping[str, Sequence[Mapping[str, Any]]]


@pytest.fixture
def used(empty_url: URL) -> Iterator[Database]:
    """A database of the newest schema that has rows in every table."""
    database = Database(empty_url, pool_size=1)
    schema.upgrade(database)
    with database.write() as session:
        populate(session)
    yield database
    database.dispose()


def test_the_database_in_use_has_a_value_in_every_column(used: Database) -> None:
    """So that no migration gets by untested: whoever adds a table or a column adds to `populated` too."""
    content = read(used)
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            assert any(row[column.name] is not None for row in content[table.name]), column


@pytest.mark.parametrize("revision", REVISIONS)
def test_what_survives_the_way_down_survives_the_way_up(used: Database, revision: str) -> None:
    newest, shape = read(used), described(used)
    schema.downgrade(used, revision)
    older = read(used)
    assert lost(newest, older) == []
    for step in REVISIONS[: REVISIONS.index(revision)][::-1]:
        upgrade_to(used, step)
        assert schema.current(used) == step
        assert lost(older, read(used)) == []
    assert described(used) == shape


def test_what_was_there_before_implicit_hits_had_none_and_reuses_from_now_on(used: Database) -> None:
    schema.downgrade(used, "b2c1f4a90d37")
    upgrade_to(used, "5e0d9a3c7b18")
    content = read(used)
    assert {row["implicit_cache_tokens"] for row in content["usage"]} == {0}
    assert {bool(row["reuses_kv"]) for row in content["projects"]} == {True}


def test_what_was_granted_is_credit_again_after_the_way_down_and_up(used: Database) -> None:
    schema.downgrade(used, "c41f7a2d9e06")
    assert "credits" not in read(used)
    upgrade_to(used, "a7d30e5b4f18")
    (row,) = read(used)["credits"]
    figures = row["granted_nano_usd"], row["used_nano_usd"], row["held_nano_usd"], bool(row["is_prepaid"])
    assert figures == (100, 7, 0, False)


def test_each_step_down_keeps_what_the_next_schema_has_a_place_for(used: Database) -> None:
    shape = described(used)
    for revision in [*REVISIONS[1:], "base"]:
        content = read(used)
        schema.downgrade(used, revision)
        assert lost(content, read(used)) == []
    assert set(read(used)) == {"alembic_version"}
    for revision in REVISIONS[::-1]:
        upgrade_to(used, revision)
    assert described(used) == shape


def test_a_row_a_value_or_a_duplicate_is_found_missing() -> None:
    content = {"t": [{"a": 1, "b": 2}, {"a": 1, "b": 2}], "gone": [{"a": 1}], "alembic_version": [{"a": 1}]}
    assert lost(content, {"t": [{"a": 1, "new": 3}, {"a": 1, "new": 4}]}) == []
    for rows in ([], [{"a": 1}], [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 1}, {"a": 1}]):
        assert lost(content, {"t": rows}) == ["t"]


def upgrade_to(database: Database, revision: str) -> None:
    config = schema._config()
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, revision)


def read(database: Database) -> Content:
    """Every row of every table that there is, as the driver gives it."""
    with database.read() as session:
        connection = session.connection()
        return {
            table: [
                dict(row)
                for row in connection.exec_driver_sql(f"SELECT * FROM {table}").mappings()
                if not _is_new(table, dict(row))
            ]
            for table in inspect(connection).get_table_names()
        }


def _is_new(table: str, row: Mapping[str, Any]) -> bool:
    """Whether older tables have no place for a row: a price of one project, or of a meter that there was not."""
    return table == "prices" and (
        row.get("project_id", "*") != "*" or row["meter"] == "implicit_cache_read_tokens"
    )


def lost(before: Content, after: Content) -> list[str]:
    """Name the tables whose rows differ in the columns that both have; a table that is gone has no place for any."""
    return [
        table
        for table in before
        if table in after and table != "alembic_version" and _differ(before[table], after[table])
    ]


def _differ(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> bool:
    both = sorted(set(before[0]) & set(after[0])) if before and after else []
    return sorted(repr([row[name] for name in both]) for row in before) != sorted(
        repr([row[name] for name in both]) for row in after
    )
