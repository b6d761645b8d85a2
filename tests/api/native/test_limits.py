"""What may be spent, over HTTP: who sees it, what is shown, and the 429 of whoever may not."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from billing.credit import grant, set_prepaid
from billing.limits import set_limit
from billing.meters import Meter
from billing.prices import load_prices
from core.api_keys import parse
from core.errors import Unavailable
from models.api_key import Scope
from models.token_quota import TokenQuota, put_token_quota
from tests.api.harness import MODEL, Server, user

ROUTES = ("/headstart/v1/billing/limits", "/headstart/v1/billing/credit")
LIMITS, CREDIT = ROUTES


def ask(server: Server, route: str, key: str | None = None, **query: str) -> httpx.Response:
    with server.client(key) as client:
        return client.get(route, params=query)


def limit(server: Server, hard: int | None, soft: int | None = None, key: str | None = None) -> None:
    with server.state.database.write() as session:
        set_limit(
            session,
            server.project_id,
            None if key is None else parse(key),
            hard_nano_usd=hard,
            soft_nano_usd=soft,
            now=server.clock.now(),
        )


def prepay(server: Server, amount: int) -> None:
    with server.state.database.write() as session:
        grant(session, server.project_id, amount, "first", server.clock.now())
        set_prepaid(session, server.project_id, is_prepaid=True)


def generate(http: httpx.Client, **config: Any) -> httpx.Response:
    body = {"contents": [user("Hello")], "generationConfig": {"maxOutputTokens": 10} | config}
    return http.post(f"/v1/models/{MODEL}:generateContent", json=body)


def held(server: Server) -> int:
    (found,) = ask(server, LIMITS).json()["limits"]
    amount: int = found["heldNanoUsd"]
    return amount


class TestWhoMayAsk:
    @pytest.mark.parametrize("route", ROUTES)
    def test_no_key_or_one_without_the_scope_is_refused(self, server: Server, route: str) -> None:
        assert httpx.get(server.url + route).status_code == 401
        bare = server.add_key(server.project_id, Scope.CACHES, Scope.GENERATE, Scope.ADMIN)
        response = ask(server, route, bare)
        assert response.status_code == 403
        assert "billing" in response.json()["error"]["message"]

    @pytest.mark.parametrize("route", ROUTES)
    def test_another_projects_are_as_absent_as_none(self, server: Server, route: str) -> None:
        other = server.add_project("somebody else")
        foreign, absent = (ask(server, route, project=word) for word in (other, "proj_none"))
        assert foreign.status_code == absent.status_code == 404
        assert foreign.text.replace(other, "proj_none") == absent.text

    @pytest.mark.parametrize("route", ROUTES)
    def test_an_unknown_parameter_is_refused_by_name(self, server: Server, route: str) -> None:
        response = ask(server, route, month="2026-05")
        assert response.status_code == 400
        assert "'month'" in response.json()["error"]["message"]

    def test_a_project_sees_its_own_and_an_operator_all_or_one(self, server: Server) -> None:
        limit(server, 10**9)
        prepay(server, 5)
        own, first = server.project_id, server.add_key(server.project_id, Scope.BILLING)
        server.project_id = server.add_project("another")
        limit(server, 10**9)
        prepay(server, 7)
        operator = server.add_key(None)

        def whose(key: str, **query: str) -> list[set[str]]:
            limits = ask(server, LIMITS, key, **query).json()["limits"]
            credit = ask(server, CREDIT, key, **query).json()["credit"]
            return [{each["project"] for each in listed} for listed in (limits, credit)]

        assert whose(first) == whose(first, project=own) == [{own}, {own}]
        assert whose(operator, project=own) == [{own}, {own}]
        for seen in whose(operator):
            assert seen >= {own, server.project_id}


class TestWhatIsShown:
    def test_limits_and_quotas(self, server: Server) -> None:
        limit(server, 10**9, 10**8)
        limit(server, None, 5, key=server.key)
        with server.state.database.write() as session:
            quota = TokenQuota(project_id=server.project_id, model="*", max_cached_tokens=77)
            put_token_quota(session, quota)
        assert ask(server, LIMITS).json() == {
            "limits": [
                {
                    "project": server.project_id,
                    "key": None,
                    "month": "2026-05",
                    "hardNanoUsd": 10**9,
                    "softNanoUsd": 10**8,
                    "spentNanoUsd": 0,
                    "heldNanoUsd": 0,
                    "leftNanoUsd": 10**9,
                    "isSoftReached": False,
                    "resetsAt": "2026-06-01T00:00:00.000000Z",
                },
                {
                    "project": server.project_id,
                    "key": parse(server.key),
                    "month": "2026-05",
                    "hardNanoUsd": None,
                    "softNanoUsd": 5,
                    "spentNanoUsd": 0,
                    "heldNanoUsd": 0,
                    "leftNanoUsd": None,
                    "isSoftReached": False,
                    "resetsAt": "2026-06-01T00:00:00.000000Z",
                },
            ],
            "quotas": [{"project": server.project_id, "model": "*", "maxCachedTokens": 77}],
        }

    def test_credit(self, server: Server) -> None:
        assert ask(server, CREDIT).json() == {"credit": []}
        prepay(server, 900)
        assert ask(server, CREDIT).json() == {
            "credit": [
                {
                    "project": server.project_id,
                    "grantedNanoUsd": 900,
                    "usedNanoUsd": 0,
                    "heldNanoUsd": 0,
                    "leftNanoUsd": 900,
                    "isPrepaid": True,
                }
            ]
        }


class TestRequests:
    def test_an_answer_is_held_while_it_runs_and_spent_after(
        self, server: Server, http: httpx.Client
    ) -> None:
        limit(server, 10**9)
        server.script.hold_before = 1
        with server.later(lambda: generate(http, candidateCount=2)) as answer:
            server.wait_for(lambda: held(server) > 0)
            twice = held(server)
            server.worker.release.set()
            cost = answer.result().json()["usageMetadata"]
        assert cost["promptTokenCount"] > 0
        (found,) = ask(server, LIMITS).json()["limits"]
        assert found["heldNanoUsd"] == 0
        assert 0 < found["spentNanoUsd"] < twice
        server.worker.release.clear()
        with server.later(lambda: generate(http)) as answer:
            server.wait_for(lambda: held(server) > 0)
            once = held(server)
            server.worker.release.set()
            answer.result()
        # The second answer of two may put out ten tokens more.
        assert twice - once == 10 * price_of_output(server)

    @pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
    def test_a_refusal_is_429_with_the_limit_and_when_to_retry(
        self, server: Server, http: httpx.Client, method: str
    ) -> None:
        limit(server, 1)
        body = {"contents": [user("Hello")]}
        response = http.post(
            f"/v1/models/{MODEL}:{method}", params={"alt": "sse"} if "stream" in method else {}, json=body
        )
        assert response.status_code == 429
        error = response.json()["error"]
        assert error["status"] == "RESOURCE_EXHAUSTED"
        info, failure, retry = error["details"]
        assert info["reason"] == "SPEND_LIMIT"
        assert info["metadata"]["limit"] == failure["violations"][0]["quotaValue"] == "1"
        assert failure["violations"][0]["quotaMetric"] == "headstart/spend_per_project_and_month"
        seconds = 27 * 86_400 + 12 * 3600 - 0.25
        assert response.headers["retry-after"] == str(27 * 86_400 + 12 * 3600)
        assert retry["retryDelay"] == f"{seconds:.3f}s"
        for words in ("0.000000001 USD", "2026-05", "2026-06-01T00:00:00Z"):
            assert words in error["message"]
        assert server.worker.sent == []

    def test_no_waiting_helps_where_credit_is_exhausted(self, server: Server, http: httpx.Client) -> None:
        prepay(server, 1)
        response = generate(http)
        assert response.status_code == 429
        assert "retry-after" not in response.headers
        error = response.json()["error"]
        assert error["details"][0]["reason"] == "CREDIT_EXHAUSTED"
        assert len(error["details"]) == 2

    def test_an_engine_that_takes_nothing_leaves_nothing_held(
        self, server: Server, http: httpx.Client
    ) -> None:
        limit(server, 10**9)
        server.script.refusal = Unavailable("full")
        assert generate(http).status_code == 503
        assert held(server) == 0

    def test_a_create_and_a_longer_life_are_refused_where_there_is_no_room(
        self, server: Server, http: httpx.Client, create_cache: Callable[..., dict[str, Any]]
    ) -> None:
        cache = create_cache(ttl="600s")
        limit(server, 1)
        created = http.post("/v1/cachedContents", json={"model": MODEL, "contents": [user("word " * 100)]})
        longer = http.patch(f"/v1/{cache['name']}", params={"updateMask": "ttl"}, json={"ttl": "6000s"})
        shorter = http.patch(f"/v1/{cache['name']}", params={"updateMask": "ttl"}, json={"ttl": "60s"})
        assert [each.status_code for each in (created, longer, shorter)] == [429, 429, 200]
        assert created.json()["error"]["details"][0]["reason"] == "SPEND_LIMIT"
        assert http.get(f"/v1/{cache['name']}").status_code == 200
        assert http.delete(f"/v1/{cache['name']}").status_code == 200


def price_of_output(server: Server) -> int:
    with server.state.database.read() as session:
        price = load_prices(session).at(server.project_id, MODEL, Meter.OUTPUT_TOKENS, server.clock.now())
    assert price.nano_usd_per_million % 10**6 == 0
    return price.nano_usd_per_million // 10**6
