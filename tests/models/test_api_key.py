from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from core.errors import KeyNotFound
from models.api_key import ApiKey, Scope, find_api_key, insert_api_key, list_api_keys, revoke_api_key
from models.session import Database
from tests.fakes.clock import START
from tests.models.rows import add_customer, add_key


def test_a_key_is_found_by_its_id(database: Database) -> None:
    with database.write() as session:
        key = add_key(session, add_customer(session, "one").project_id)
    with database.read() as session:
        found = find_api_key(session, key.id)
        assert found is not None
        assert found.secret_mac == key.secret_mac
        assert found.scopes == {Scope.CACHES, Scope.GENERATE}
        assert find_api_key(session, "key_none") is None


def test_an_operator_key_has_no_project(database: Database) -> None:
    with database.write() as session:
        customer = add_customer(session, "one")
        operator = add_key(session, None)
        assert operator.project_id is None
        assert [key.id for key in list_api_keys(session, None)] == [operator.id]
        assert [key.id for key in list_api_keys(session, customer.project_id)] == [customer.key_id]


def test_scopes_are_stored_as_words_in_a_fixed_order(database: Database) -> None:
    with database.write() as session:
        key = add_key(session, None)
        stored = session.scalars(text("SELECT scopes FROM api_keys WHERE id = :id"), {"id": key.id}).one()
    assert stored == "caches generate"


def test_a_revoked_key_keeps_the_first_instant(database: Database) -> None:
    with database.write() as session:
        key = add_key(session, None)
        revoke_api_key(session, key.id, START + timedelta(seconds=1))
    with database.write() as session:
        revoke_api_key(session, key.id, START + timedelta(seconds=2))
    with database.read() as session:
        found = find_api_key(session, key.id)
        assert found is not None
        assert found.revoked_at == START + timedelta(seconds=1)


def test_a_clock_that_was_set_back_revokes_nevertheless(database: Database) -> None:
    with database.write() as session:
        key = add_key(session, None)
        assert revoke_api_key(session, key.id, START - timedelta(hours=1)).revoked_at == START


def test_a_key_that_does_not_exist_is_not_found(database: Database) -> None:
    with database.write() as session, pytest.raises(KeyNotFound, match="headstart keys list"):
        revoke_api_key(session, "key_none", START)


@pytest.mark.parametrize("mac", [b"", bytes(31), bytes(33)])
def test_a_mac_of_another_size_is_refused(database: Database, mac: bytes) -> None:
    key = ApiKey(id="key_1", name="x", secret_mac=mac, scopes=frozenset(), created_at=START)
    with pytest.raises(IntegrityError, match="secret_mac_size"), database.write() as session:
        insert_api_key(session, key)
