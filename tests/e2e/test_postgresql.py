"""The embedded server with its database on PostgreSQL: the main job, a crash, and whatever befalls a connection."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from models.cache import CacheState
from tests.e2e.customer import document
from tests.e2e.home import Home
from tests.e2e.processes import wait_until
from tests.postgresql import PostgreSQL

PASSWORD = "hidden-word"  # the server asks for none
QUESTION = "What is left?"
TABLES = ("caches", "usage", "idempotency_keys", "placements", "storage_segments")


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
    customer.delete(kept)  # so that nothing more comes to be owed
    bill = home.books.proven_bill(again.address, home.operator_key)
    period = ("--start", bill["start"], "--end", bill["end"])
    printed = json.loads(home.command("billing", "report", *period, "--json"))
    assert printed["groups"] == bill["groups"] != []
    assert [row.output_tokens for row in home.books.generations(customer.project_id)] == [8] * 4
    assert again.terminate() == 0

    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert PASSWORD not in logs
    assert "(kept)" not in logs
    assert not list(home.data_dir.glob("*sqlite*"))


def test_no_row_and_after_a_rewrite_no_file_has_what_has_ended(home: Home, postgresql: PostgreSQL) -> None:
    server = home.start()
    customer, words = home.customer(server), f"kanarie{secrets.token_hex(8)}"
    body = customer.cache_body(document(300, words)) | {"displayName": words}
    names = [
        customer.http.post(
            "/v1beta/cachedContents", json=body, headers={"idempotency-key": f"{words}{n}"}
        ).json()["name"]
        for n in range(2)
    ]
    url = home.books.database._engine.url
    contents = [words.encode(), home.books.token_bytes(names[0])]
    assert traces(postgresql, url, contents) == set(contents)
    assert on_disk(postgresql, url, contents)
    customer.delete(names[0])
    customer.patch(names[1], ttl="0.2s")
    wait_until(lambda: not traces(postgresql, url, contents), "no row has it")
    postgresql.rewrite(url)
    assert on_disk(postgresql, url, contents) == []
    assert words not in server.log()
    assert server.terminate() == 0


def traces(postgresql: PostgreSQL, url: URL, contents: list[bytes]) -> set[bytes]:
    """Which of these stand in any row that anybody can see."""
    rows = "".join(postgresql.rows(url, table) for table in TABLES)
    return {content for content in contents if content.hex() in rows or content in rows.encode()}


def on_disk(postgresql: PostgreSQL, url: URL, contents: list[bytes]) -> list[str]:
    """Which files of the database hold one of these."""
    files = {path: path.read_bytes() for path in postgresql.files(url)}
    assert files
    return [str(path) for path, held in files.items() if any(content in held for content in contents)]
