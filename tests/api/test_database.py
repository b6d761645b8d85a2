"""A database that goes away under the server is told to clients as something to wait for, and nothing else of it."""

from pathlib import Path

from core.settings import Settings
from models.schema import upgrade
from models.session import Database
from prompting.served_model import ServedModel
from tests.api.harness import MODEL, open_server, user, words
from tests.postgresql import PostgreSQL


def test_a_database_that_is_gone_is_a_503_with_a_hint(
    postgresql: PostgreSQL, tmp_path: Path, settings: Settings, served_model: ServedModel
) -> None:
    url = postgresql.create()
    database = Database(url, settings.database_pool_size)
    upgrade(database)
    with open_server(tmp_path, database, settings, served_model) as server:
        server.begin()
        with server.client() as http:
            body = {"model": MODEL, "contents": [user(words(100))]}
            assert http.post("/v1/cachedContents", json=body).status_code == 200
            postgresql.drop(url)
            for answer in (http.post("/v1/cachedContents", json=body), http.get("/v1/cachedContents")):
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["error"]["message"] == "The database does not answer. Try again."
    database.dispose()
