from pathlib import Path

import pytest

from core.data_folder import DataFolder, database_path
from models.schema import newest
from tests.cli.running import done, headstart, refused


class TestUpgrade:
    @pytest.mark.parametrize("command", [["migrate"], ["migrate", "upgrade"]])
    def test_makes_the_database(self, empty_folder: Path, command: list[str]) -> None:
        assert done(*command).strip() == newest()
        assert done("projects", "list", "--json").strip() == "[]"

    def test_keeps_strangers_out(self, empty_folder: Path) -> None:
        done("migrate")
        assert empty_folder.stat().st_mode & 0o077 == 0
        assert database_path(empty_folder).stat().st_mode & 0o077 == 0

    def test_again_changes_nothing(self, data_folder: Path) -> None:
        done("migrate")
        assert "default" in done("projects", "list")

    def test_is_refused_while_a_server_runs(self, data_folder: Path) -> None:
        server = DataFolder.open(data_folder)
        try:
            assert "in use" in refused("migrate")
            assert "in use" in refused("migrate", "downgrade", "base", "--yes")
        finally:
            server.close()


class TestDowngrade:
    def test_asks_first(self, data_folder: Path) -> None:
        assert headstart("migrate", "downgrade", "base", answer="n\n").status == 1
        assert "default" in done("projects", "list")

    def test_takes_the_tables_back(self, data_folder: Path) -> None:
        assert done("migrate", "downgrade", "base", "--yes").strip() == "base"
        assert "headstart migrate" in refused("projects", "list")
        done("migrate")
        assert done("projects", "list", "--json").strip() == "[]"

    def test_refuses_a_migration_that_was_not_passed(self, data_folder: Path) -> None:
        message = refused("migrate", "downgrade", "nonsense", "--yes")
        assert "nonsense" in message
        assert str(newest()) in message


class TestCurrent:
    def test_names_the_migration(self, empty_folder: Path) -> None:
        assert "no database" in done("migrate", "current")
        assert not empty_folder.exists()
        done("migrate")
        assert done("migrate", "current").strip() == f"{newest()} (newest)"
        done("migrate", "downgrade", "base", "--yes")
        assert done("migrate", "current").strip() == "base"
