import json
from pathlib import Path

import pytest

from tests.cli.running import done, refused


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
