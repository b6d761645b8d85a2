import json
from pathlib import Path

import pytest

from core import api_keys
from core.data_folder import secret_path
from core.secret import RootSecret
from models.api_key import ApiKey, Scope, find_api_key
from models.session import Database
from tests.cli.running import done, headstart, refused


def stored(database: Database, shown: str) -> ApiKey:
    key_id = api_keys.parse(shown)
    assert key_id is not None
    with database.read() as session:
        key = find_api_key(session, key_id)
    assert key is not None
    return key


def is_valid(data_folder: Path, database: Database, shown: str) -> bool:
    pepper = RootSecret.load_or_create(secret_path(data_folder)).derive(api_keys.PEPPER)
    return api_keys.verify(pepper, shown, stored(database, shown).secret_mac)


class TestCreate:
    def test_prints_the_key_alone(self, data_folder: Path, database: Database) -> None:
        outcome = headstart(
            "keys", "create", "--project", "default", "--name", "laptop", "--scopes", "caches,billing"
        )
        assert outcome.status == 0
        shown = outcome.out.removesuffix("\n")
        assert is_valid(data_folder, database, shown)
        key = stored(database, shown)
        assert (key.name, key.scopes) == ("laptop", frozenset({Scope.CACHES, Scope.BILLING}))
        assert "cannot be shown again" in outcome.err

    def test_needs_no_option(self, data_folder: Path, database: Database) -> None:
        key = stored(database, done("keys", "create").strip())
        assert key.scopes == {Scope.CACHES, Scope.GENERATE, Scope.BILLING}
        assert key.project_id is not None

    def test_finds_a_project_by_id(self, data_folder: Path, database: Database) -> None:
        project_id = done("projects", "create", "other").strip()
        assert (
            stored(database, done("keys", "create", "--project", project_id).strip()).project_id == project_id
        )

    def test_makes_an_operators_key(self, data_folder: Path, database: Database) -> None:
        shown = done("keys", "create", "--operator").strip()
        assert stored(database, shown).project_id is None
        assert stored(database, shown).scopes == frozenset(Scope)
        assert is_valid(data_folder, database, shown)

    def test_keys_made_one_after_the_other_share_the_secret(
        self, data_folder: Path, database: Database
    ) -> None:
        shown = [done("keys", "create").strip() for _ in range(2)]
        assert all(is_valid(data_folder, database, each) for each in shown)

    @pytest.mark.parametrize(
        "options",
        [["--project", "default"], ["--scopes", "caches"], ["--project", "x", "--scopes", "caches"]],
    )
    def test_an_operators_key_has_neither_project_nor_scopes(
        self, data_folder: Path, options: list[str]
    ) -> None:
        assert headstart("keys", "create", "--operator", *options).status == 2

    @pytest.mark.parametrize("scopes", ["", "nonsense", "caches,", "caches,,billing", "CACHES"])
    def test_an_unknown_scope_is_wrong_usage(self, data_folder: Path, scopes: str) -> None:
        outcome = headstart("keys", "create", "--scopes", scopes)
        assert outcome.status == 2
        assert "--scopes" in outcome.err

    @pytest.mark.parametrize("name", ["", "a\nb", "a\x1bb", "x" * 64])
    def test_refuses_a_name_that_cannot_be_shown(self, data_folder: Path, name: str) -> None:
        assert "name" in refused("keys", "create", "--name", name)

    def test_refuses_an_unknown_project(self, data_folder: Path) -> None:
        assert "nobody" in refused("keys", "create", "--project", "nobody")

    def test_refuses_to_replace_a_lost_secret(self, data_folder: Path) -> None:
        done("keys", "create")
        secret_path(data_folder).unlink()
        assert str(secret_path(data_folder)) in refused("keys", "create")
        assert not secret_path(data_folder).exists()


class TestList:
    def test_shows_every_key_and_no_secret(self, data_folder: Path) -> None:
        shown = [
            done("keys", "create", "--name", "[red]laptop").strip(),
            done("keys", "create", "--operator").strip(),
        ]
        table, as_json = done("keys", "list"), done("keys", "list", "--json")
        for each in shown:
            key_id = api_keys.parse(each)
            assert key_id is not None
            for text in (table, as_json):
                assert key_id in text
                assert each.rpartition("_")[2] not in text
        assert "[red]laptop" in table
        assert "(operator)" in table
        assert [each["project"] for each in json.loads(as_json)] == [None, "default"]

    def test_shows_one_projects_keys(self, data_folder: Path) -> None:
        done("projects", "create", "other")
        done("keys", "create")
        assert json.loads(done("keys", "list", "--project", "other", "--json")) == []
        assert len(json.loads(done("keys", "list", "--project", "default", "--json"))) == 1

    def test_refuses_an_unknown_project(self, data_folder: Path) -> None:
        assert "nobody" in refused("keys", "list", "--project", "nobody")


class TestRevoke:
    def test_ends_a_key_for_good(self, data_folder: Path, database: Database) -> None:
        shown = done("keys", "create").strip()
        key_id = str(api_keys.parse(shown))
        first = done("keys", "revoke", key_id)
        assert stored(database, shown).revoked_at is not None
        assert done("keys", "revoke", key_id) == first
        (listed,) = json.loads(done("keys", "list", "--json"))
        assert listed["revokedAt"] is not None

    def test_refuses_an_unknown_key(self, data_folder: Path) -> None:
        assert "key_nobody" in refused("keys", "revoke", "key_nobody")
