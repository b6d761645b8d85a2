import json
from pathlib import Path

import pytest

from tests.cli.running import done, headstart, refused


class TestCreate:
    def test_prints_the_id_alone(self, data_folder: Path) -> None:
        project_id = done("projects", "create", "other").strip()
        assert {"id": project_id, "name": "other"}.items() <= json.loads(done("projects", "list", "--json"))[
            1
        ].items()

    def test_refuses_a_name_that_is_taken(self, data_folder: Path) -> None:
        assert "exists already" in refused("projects", "create", "default")

    @pytest.mark.parametrize("name", ["", "a b", "proj_x", "a/b", "x" * 64, "naïve", "a\n"])
    def test_refuses_a_name_of_another_form(self, data_folder: Path, name: str) -> None:
        assert "name must" in refused("projects", "create", name)


class TestList:
    def test_shows_all_by_name(self, data_folder: Path) -> None:
        done("projects", "create", "alpha")
        assert [each["name"] for each in json.loads(done("projects", "list", "--json"))] == [
            "alpha",
            "default",
        ]
        table = done("projects", "list")
        assert table.index("alpha") < table.index("default")
        assert table.count(" on ") == 2


class TestShow:
    def test_shows_one_by_name_or_id(self, data_folder: Path) -> None:
        project_id = done("projects", "create", "alpha").strip()
        for word in ("alpha", project_id):
            shown = json.loads(done("projects", "show", word, "--json"))
            assert {"id": project_id, "name": "alpha", "reusesKv": True}.items() <= shown.items()
            table = done("projects", "show", word)
            assert project_id in table
            assert "default" not in table

    def test_refuses_what_does_not_exist(self, data_folder: Path) -> None:
        assert "nobody" in refused("projects", "show", "nobody")


class TestUpdate:
    @pytest.mark.parametrize("by_name", [True, False])
    def test_turns_reuse_off_and_on_for_this_project(self, data_folder: Path, by_name: bool) -> None:
        project_id = done("projects", "create", "alpha").strip()
        word = "alpha" if by_name else project_id
        for option, is_on in (("--no-reuse", False), ("--no-reuse", False), ("--reuse", True)):
            updated = json.loads(done("projects", "update", word, option, "--json"))
            assert (updated["id"], updated["reusesKv"]) == (project_id, is_on)
            listed = json.loads(done("projects", "list", "--json"))
            assert [each["reusesKv"] for each in listed] == [is_on, True]

    def test_prints_the_project_as_it_is_now(self, data_folder: Path) -> None:
        assert " off " in done("projects", "update", "default", "--no-reuse")
        assert " off " in done("projects", "list")
        assert " off " in done("projects", "show", "default")

    def test_wants_to_know_what_to_change(self, data_folder: Path) -> None:
        outcome = headstart("projects", "update", "default")
        assert outcome.status == 2
        assert "--no-reuse" in outcome.err

    def test_refuses_what_does_not_exist(self, data_folder: Path) -> None:
        assert "nobody" in refused("projects", "update", "nobody", "--no-reuse")
