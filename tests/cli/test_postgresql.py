"""Every command that opens the database opens the one that HEADSTART_DATABASE_URL names, and shows no part of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from billing.prices import store
from cli.database import open_database
from core.settings import load_settings
from models.opening import sole_home
from models.schema import newest
from tests.billing.rows import T0, add_project, book, generate
from tests.cli.running import done, refused
from tests.postgresql import PostgreSQL

PASSWORD = "hidden-word"


@pytest.fixture
def folder(empty_folder: Path, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder that does not exist yet, beside an empty database on PostgreSQL."""
    url = postgresql.create()
    monkeypatch.setenv(
        "HEADSTART_DATABASE_URL", url.set(password=PASSWORD).render_as_string(hide_password=False)
    )
    yield empty_folder
    postgresql.drop(url)


def test_the_commands_work_on_it_and_leave_no_file(folder: Path) -> None:
    assert done("migrate", "current").strip() == "base"
    assert "headstart migrate" in refused("projects", "list")
    assert done("migrate").strip() == newest()
    assert done("migrate", "current").strip() == f"{newest()} (newest)"
    done("projects", "create", "default")
    assert [each["name"] for each in json.loads(done("projects", "list", "--json"))] == ["default"]
    assert done("keys", "create").startswith("hs_")
    (key,) = json.loads(done("keys", "list", "--project", "default", "--json"))
    assert "revoked" in done("keys", "revoke", key["id"])
    assert json.loads(done("billing", "report", "--json"))["amountNanoUsd"] == 0
    with open_database(load_settings()) as database, database.write() as session:
        store(session, book(), T0)
        generate(session, add_project(session, "busy"), "r", prompt=1000, output=0)
    done("billing", "post")
    assert "2026-03 is closed at 0.000100000 USD" in done("billing", "close", "2026-03")
    assert [each["amountNanoUsd"] for each in json.loads(done("billing", "periods", "--json"))] == [100_000]
    assert "to the nano" in done("billing", "verify")
    assert [path.name for path in folder.iterdir() if "sqlite" in path.name] == []
    assert done("migrate", "downgrade", "base", "--yes").strip() == "base"
    assert "headstart migrate" in refused("projects", "list")


def test_a_migration_is_refused_while_a_server_runs_elsewhere(folder: Path, tmp_path: Path) -> None:
    with sole_home(load_settings(data_dir=tmp_path / "server"), pool_size=1):
        assert "in use by another server" in refused("migrate")


@pytest.mark.parametrize(
    "command", [["migrate"], ["migrate", "current"], ["projects", "list"], ["keys", "create"]]
)
@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{PASSWORD}@localhost:1/books",
        f"postgresql://me:{PASSWORD}@localhost:port/books",
        f"mysql://me:{PASSWORD}@localhost/books",
    ],
)
def test_a_refusal_names_the_setting_and_no_password(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, command: list[str]
) -> None:
    monkeypatch.setenv("HEADSTART_DATABASE_URL", address)
    message = refused(*command)
    assert message.startswith("HEADSTART_DATABASE_URL: ")
    assert PASSWORD not in message
