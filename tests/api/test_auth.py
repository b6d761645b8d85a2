from typing import Any

import httpx
import pytest

from core import api_keys
from models.api_key import Scope
from tests.api.harness import Server, on_each_database

pytestmark = on_each_database

READ = "/v1/cachedContents"
NATIVE = "/headstart/v1/billing/report"


def ask(server: Server, path: str = READ, **kwargs: Any) -> httpx.Response:
    return httpx.get(server.url + path, verify=False, **kwargs)


def reason(response: httpx.Response) -> str:
    return str(response.json()["error"]["details"][0]["reason"])


class TestWhereTheKeyStands:
    def test_in_the_header_the_query_or_as_bearer(self, server: Server) -> None:
        assert ask(server, headers={"x-goog-api-key": server.key}).status_code == 200
        assert ask(server, params={"key": server.key}).status_code == 200
        assert ask(server, headers={"authorization": f"Bearer {server.key}"}).status_code == 200
        assert ask(server, headers={"authorization": f"bearer {server.key}"}).status_code == 200

    def test_the_header_wins_over_the_query_and_the_query_over_a_bearer(self, server: Server) -> None:
        good, bad = server.key, "bad"
        assert ask(server, headers={"x-goog-api-key": bad}, params={"key": good}).status_code == 400
        assert ask(server, headers={"x-goog-api-key": good}, params={"key": bad}).status_code == 200
        assert (
            ask(server, params={"key": bad}, headers={"authorization": f"Bearer {good}"}).status_code == 400
        )
        assert ask(server, params={"key": good}, headers={"authorization": "Bearer bad"}).status_code == 200

    def test_an_empty_one_is_none(self, server: Server) -> None:
        assert ask(server, headers={"x-goog-api-key": ""}, params={"key": server.key}).status_code == 200


class TestRefusals:
    def test_no_key_is_403_with_googles_text(self, server: Server) -> None:
        response = ask(server)
        assert response.status_code == 403
        assert response.json()["error"]["message"].startswith("Method doesn't allow unregistered callers")

    @pytest.mark.parametrize("key", ["AIzaSyNotOurs", "hs_x_y", "é", "x" * 5000])
    def test_a_wrong_key_is_400_api_key_invalid(self, server: Server, key: str) -> None:
        response = ask(server, params={"key": key})
        assert response.status_code == 400
        assert response.json()["error"]["status"] == "INVALID_ARGUMENT"
        assert reason(response) == "API_KEY_INVALID"

    @pytest.mark.parametrize("value", ["Bearer nope", "Bearer", "Basic dXNlcjpwYXNz", "nonsense"])
    def test_a_wrong_bearer_is_401(self, server: Server, value: str) -> None:
        response = ask(server, headers={"authorization": value})
        assert response.status_code == 401
        assert response.json()["error"]["status"] == "UNAUTHENTICATED"

    def test_a_well_formed_key_of_no_row_is_refused(self, server: Server) -> None:
        stranger = api_keys.mint(server.state.secret.derive(api_keys.PEPPER)).shown
        assert reason(ask(server, params={"key": stranger})) == "API_KEY_INVALID"

    def test_a_key_with_the_right_id_and_another_secret_is_refused(self, server: Server) -> None:
        public_id = str(api_keys.parse(server.key)).removeprefix("key_")
        secret = api_keys.mint(bytes(32)).shown.split("_")[2][:30]
        forged = f"hs_{public_id}_{secret}"
        forged += api_keys._checksum(forged)
        assert api_keys.parse(forged) == api_keys.parse(server.key)
        assert reason(ask(server, params={"key": forged})) == "API_KEY_INVALID"

    def test_a_revoked_key_ends_at_once(self, server: Server) -> None:
        assert ask(server, params={"key": server.key}).status_code == 200
        server.revoke(server.key)
        assert reason(ask(server, params={"key": server.key})) == "API_KEY_INVALID"

    def test_under_our_own_resources_all_causes_have_one_body(self, server: Server) -> None:
        answers = [
            ask(server, NATIVE),
            ask(server, NATIVE, params={"key": "bad"}),
            ask(server, NATIVE, headers={"authorization": "Bearer bad"}),
        ]
        assert {answer.status_code for answer in answers} == {401}
        assert len({answer.text for answer in answers}) == 1

    def test_a_bad_key_is_told_before_the_body_is_read(self, server: Server) -> None:
        response = httpx.post(server.url + READ, params={"key": "bad"}, content=b"{")
        assert reason(response) == "API_KEY_INVALID"


class TestScopes:
    @pytest.mark.parametrize(
        ("scope", "method", "path"),
        [
            (Scope.CACHES, "GET", "/v1/cachedContents"),
            (Scope.CACHES, "POST", "/v1/cachedContents"),
            (Scope.CACHES, "GET", "/v1/cachedContents/x"),
            (Scope.CACHES, "PATCH", "/v1/cachedContents/x"),
            (Scope.CACHES, "DELETE", "/v1/cachedContents/x"),
            (Scope.GENERATE, "POST", "/v1/models/tiny:generateContent"),
            (Scope.GENERATE, "POST", "/v1/models/tiny:streamGenerateContent?alt=sse"),
            (Scope.GENERATE, "POST", "/v1/models/tiny:countTokens"),
        ],
    )
    def test_each_route_asks_for_its_own(self, server: Server, scope: Scope, method: str, path: str) -> None:
        lacking = server.add_key(server.project_id, *(set(Scope) - {scope}))
        having = server.add_key(server.project_id, scope)
        with server.client(lacking) as client:
            response = client.request(method, path)
            assert response.status_code == 403
            assert response.json()["error"]["details"][0] == {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "SCOPE_MISSING",
                "domain": "headstart",
                "metadata": {"scope": scope.value},
            }
        with server.client(having) as client:
            assert "SCOPE_MISSING" not in client.request(method, path).text

    def test_models_are_shown_to_every_key(self, server: Server) -> None:
        for key in (server.add_key(server.project_id), server.add_key(None)):
            assert ask(server, "/v1/models", params={"key": key}).status_code == 200

    def test_an_operators_key_belongs_to_no_project(self, server: Server) -> None:
        response = ask(server, params={"key": server.add_key(None, *Scope)})
        assert response.status_code == 403
        assert "operator" in response.json()["error"]["message"]
