import contextlib
import gc
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.main import _import_large
from core.data_folder import DataFolder, database_path
from tests.cli.running import done, headstart, refused

HELP_THEN_MODULES = """
import sys
from cli.main import app
try:
    app(["--help"])
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "transformers", "tokenizers", "fastapi", "uvicorn", "google.genai", "workers.engine"}
print("imported:", *sorted(heavy & sys.modules.keys()))
"""


class TestHelp:
    def test_lists_every_command(self) -> None:
        text = done("--help")
        for command in ("serve", "demo", "keys", "projects", "billing", "models", "migrate"):
            assert f" {command} " in text

    def test_imports_nothing_heavy(self) -> None:
        run = subprocess.run(
            [sys.executable, "-c", HELP_THEN_MODULES], capture_output=True, text=True, check=True, timeout=60
        )
        assert run.stdout.splitlines()[-1] == "imported:"

    @pytest.mark.parametrize("group", ["keys", "projects", "billing", "models", "migrate"])
    def test_every_group_explains_itself(self, group: str) -> None:
        assert f"Usage: headstart {group}" in headstart(group, "--help").out.replace("root", "headstart")


class TestCommandsThatAreImportedLate:
    def test_explain_themselves(self) -> None:
        assert "Usage: headstart demo" in done("demo", "--help")

    @pytest.mark.parametrize("module", ["cli.serve", "cli.no_such_module"])
    def test_the_collector_rests_while_they_are_imported_and_not_longer(
        self, module: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at_rest: list[bool] = []

        def import_module(name: str) -> object:
            at_rest.append(not gc.isenabled())
            if name == "cli.no_such_module":
                raise ModuleNotFoundError(name)
            return SimpleNamespace(serve=lambda: None)

        monkeypatch.setattr(importlib, "import_module", import_module)
        with contextlib.suppress(ModuleNotFoundError):
            _import_large(module)
        assert at_rest == [True]
        assert gc.isenabled()

    def test_wrong_usage_ends_with_2(self) -> None:
        outcome = headstart("demo", "--nonsense")
        assert outcome.status == 2
        assert "--nonsense" in outcome.err


class TestExitStatus:
    def test_an_unknown_command_is_wrong_usage(self) -> None:
        assert headstart("nonsense").status == 2

    def test_an_unknown_option_is_wrong_usage(self) -> None:
        assert headstart("keys", "list", "--nonsense").status == 2

    def test_a_wrong_setting_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADSTART_PORT", "eighty")
        assert "HEADSTART_PORT" in refused("projects", "list")

    def test_a_missing_database_is_refused_with_the_remedy(self, empty_folder: Path) -> None:
        for command in (["projects", "list"], ["keys", "create"], ["billing", "report"]):
            message = refused(*command)
            assert str(empty_folder) in message
            assert "headstart migrate" in message
        assert not empty_folder.exists()

    def test_a_database_without_tables_is_refused_with_the_remedy(self, empty_folder: Path) -> None:
        DataFolder.open(empty_folder).close()
        assert "headstart migrate" in refused("projects", "list")

    def test_a_file_that_is_no_database_is_refused(self, empty_folder: Path) -> None:
        empty_folder.mkdir()
        database_path(empty_folder).write_text("no database" * 100)
        assert "not a database" in refused("projects", "list")

    def test_a_data_folder_that_is_a_file_is_refused(self, empty_folder: Path) -> None:
        empty_folder.write_text("")
        assert str(empty_folder) in refused("migrate")


def test_works_beside_a_running_server(data_folder: Path) -> None:
    server = DataFolder.open(data_folder)
    try:
        assert done("keys", "create")
        assert done("billing", "report")
    finally:
        server.close()
