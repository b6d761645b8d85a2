"""Who may say that automatic KV is not reused: the request, its project, the server."""

from pathlib import Path

import httpx
import pytest

from core.settings import Settings
from models.api_key import Scope
from models.project import update_project
from models.session import Database
from prompting.served_model import ServedModel
from tests.api.harness import MODEL, Server, on_each_database, open_server, user

METHODS = ("generateContent", "streamGenerateContent?alt=sse")


def ask(http: httpx.Client, method: str = METHODS[0], *words: str) -> httpx.Response:
    headers = [("X-Headstart-Reuse", word) for word in words]
    return http.post(f"/v1/models/{MODEL}:{method}", json={"contents": [user("Hi")]}, headers=headers)


def reuses(server: Server) -> list[bool]:
    return [message.reuses_kv for message in server.worker.generated]


class TestRequest:
    @pytest.mark.parametrize("method", METHODS)
    def test_it_reuses_unless_it_says_off(self, server: Server, http: httpx.Client, method: str) -> None:
        for words in ((), ("on",), ("off",), ("off", "off")):
            assert ask(http, method, *words).status_code == 200
        assert reuses(server) == [True, True, False, False]

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("words", [("",), ("OFF",), ("no",), ("false",), ("on", "off"), ("x" * 9000,)])
    def test_any_other_word_is_400_and_names_the_header(
        self, server: Server, http: httpx.Client, method: str, words: tuple[str, ...]
    ) -> None:
        response = ask(http, method, *words)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"].startswith("X-Headstart-Reuse must be 'on' or 'off', not '")
        assert len(error["message"]) < 100
        (violation,) = error["details"][1]["fieldViolations"]
        assert violation["field"] == "X-Headstart-Reuse"
        assert server.worker.sent == []

    def test_whose_kv_it_is_goes_with_it(self, server: Server, http: httpx.Client) -> None:
        ask(http)
        assert [message.project_id for message in server.worker.generated] == [server.project_id]


@on_each_database
class TestProject:
    def test_off_holds_for_all_its_requests_and_no_others_from_the_next_one_on(
        self, server: Server, http: httpx.Client
    ) -> None:
        other = server.add_project(f"beside {server.project_id}")
        with server.client(server.add_key(other, Scope.GENERATE)) as neighbour:
            for is_on in (True, False, True):
                with server.state.database.write() as session:
                    update_project(session, server.project_id, reuses_kv=is_on)
                ask(http)
                ask(http, METHODS[0], "on")
                ask(neighbour)
        assert reuses(server) == [True, True, True, False, False, True, True, True, True]


def test_off_at_the_server_holds_for_all(
    database: Database, tmp_path: Path, settings: Settings, served_model: ServedModel
) -> None:
    off = settings.model_copy(update={"automatic_reuse": False})
    with open_server(tmp_path, database, off, served_model) as server:
        server.begin()
        with server.client() as http:
            ask(http)
            ask(http, METHODS[0], "on")
        assert reuses(server) == [False, False]
