"""The embedded server with its database on PostgreSQL: the main job, a crash, and whatever befalls a connection."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.cache import CacheState
from tests.e2e.customer import document
from tests.e2e.home import Home
from tests.postgresql import PostgreSQL

PASSWORD = "hidden-word"  # the server asks for none
QUESTION = "What is left?"


@pytest.fixture
def home(tmp_path: Path, settings: dict[str, str], postgresql: PostgreSQL) -> Iterator[Home]:
    """A data folder whose database is an empty one on PostgreSQL."""
    url = postgresql.create()
    address = url.set(password=PASSWORD).render_as_string(hide_password=False)
    home = Home(tmp_path, settings | {"database_url": address})
    yield home
    home.close()
    postgresql.drop(url)


def test_create_ask_bill_crash_and_ask_again(home: Home, postgresql: PostgreSQL, tmp_path: Path) -> None:
    server = home.start()
    customer = home.customer(server)
    kept = customer.create(document(300, "kept"))["name"]
    deleted = customer.create(document(100, "deleted"))["name"]
    answer = customer.ask(QUESTION, kept)
    assert answer.text == customer.ask(QUESTION, None, document(300, "kept")).text
    customer.delete(deleted)
    assert home.books.cache(deleted).messages is None
    assert {row.state for row in home.books.caches(customer.project_id)} == {
        CacheState.ACTIVE,
        CacheState.DELETED,
    }

    other = Home(tmp_path / "other", home.settings)
    other.folder.mkdir()
    assert "in use by another server" in other.refused()

    postgresql.disconnect(home.books.database._engine.url)
    assert customer.ask(QUESTION, kept).text == answer.text
    server.kill()
    again = home.start()
    assert again.project_key is None
    customer = home.customer(again)
    assert customer.names() == [kept]
    assert customer.ask(QUESTION, kept).text == answer.text
    bill = home.books.proven_bill(again.address, home.operator_key)
    period = ("--start", bill["start"], "--end", bill["end"])
    printed = json.loads(home.command("billing", "report", *period, "--json"))
    assert printed["projects"] == bill["projects"] != []
    assert [row.output_tokens for row in home.books.generations(customer.project_id)] == [8] * 4
    assert again.terminate() == 0

    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert PASSWORD not in logs
    assert "(kept)" not in logs
    assert not list(home.data_dir.glob("*sqlite*"))
