"""Which caches cost more than they save, over HTTP: the greatest loss first, in pages."""

from datetime import timedelta
from typing import Any

import httpx
import pytest

from billing.cache_report import SUBJECTS, cache_figures, cache_report
from billing.cache_report_json import cache_report_json
from billing.periods import Period
from billing.report import Query
from models.api_key import Scope
from tests.api.harness import Server
from tests.billing.rows import T0, add_cache, add_project, after, generate, write

ROUTE = "/headstart/v1/billing/caches"
WEEK = {"start": "2026-03-01T00:00:00Z", "end": "2026-03-08T00:00:00Z"}


@pytest.fixture
def projects(server: Server) -> tuple[str, str]:
    """Two projects with two caches each, of 1,000 tokens and an hour, hit 0 and 40, and 20 and 60 times."""
    server.clock.advance((T0 + timedelta(days=1) - server.clock.now()).total_seconds())
    with server.state.database.write() as session:
        made = add_project(session, "first"), add_project(session, "second")
        for index, project_id in enumerate(made):
            for kind, hits in (("idle", 20 * index), ("busy", 40 + 20 * index)):
                cache_id = f"{kind}_{project_id}"
                add_cache(session, project_id, cache_id, tokens=1000, end=after(3600))
                write(session, project_id, cache_id, tokens=1000)
                for number in range(hits):
                    used = f"{cache_id}_{number}"
                    generate(session, project_id, used, prompt=1010, cached=1000, cache_id=cache_id, output=1)
            generate(session, project_id, f"alone_{project_id}", prompt=20, output=5)
    return made


def ask(server: Server, key: str, **query: str) -> httpx.Response:
    with server.client(key) as client:
        return client.get(ROUTE, params=query)


def body(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


class TestWhoMayAsk:
    def test_no_key_is_refused(self, server: Server) -> None:
        refusal(httpx.get(server.url + ROUTE), 401)

    def test_a_key_without_the_scope_is_refused(self, server: Server, projects: tuple[str, str]) -> None:
        key = server.add_key(projects[0], Scope.CACHES, Scope.GENERATE, Scope.ADMIN)
        assert "billing" in refusal(ask(server, key), 403)["message"]

    def test_a_project_sees_its_own_alone(self, server: Server, projects: tuple[str, str]) -> None:
        key = server.add_key(projects[0], Scope.BILLING)
        for query in ({}, {"project": projects[0]}, {"project": "first"}):
            found = body(ask(server, key, **WEEK, **query))
            assert {each["project"] for each in found["caches"]} == {projects[0]}
        foreign = refusal(ask(server, key, project=projects[1]), 404)
        absent = refusal(ask(server, key, project="proj_absent"), 404)
        assert foreign["message"].replace(projects[1], "proj_absent") == absent["message"]

    def test_an_operator_sees_all_or_the_one_asked_for(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(None)
        assert {each["project"] for each in body(ask(server, key, **WEEK))["caches"]} == set(projects)
        found = body(ask(server, key, **WEEK, project="second"))
        assert {each["project"] for each in found["caches"]} == {projects[1]}


class TestReport:
    def test_shows_the_greatest_loss_first(self, server: Server, projects: tuple[str, str]) -> None:
        first, second = projects
        found = body(ask(server, server.add_key(None), **WEEK))
        assert [(each["cache"], each["netNanoUsd"]) for each in found["caches"]] == [
            (f"idle_{first}", -1_100_000),
            (f"idle_{second}", 20 * 90_000 - 1_100_000),
            (f"busy_{first}", 40 * 90_000 - 1_100_000),
            (f"busy_{second}", 60 * 90_000 - 1_100_000),
        ]
        assert [each["costsMoreThanItSaves"] for each in found["caches"]] == [True, False, False, False]
        assert (found["cacheCount"], found["losingCacheCount"]) == (4, 1)
        assert found["netNanoUsd"] == sum(each["netNanoUsd"] for each in found["caches"])

    def test_equals_what_is_read_from_the_ledger(self, server: Server, projects: tuple[str, str]) -> None:
        found = body(ask(server, server.add_key(None), **WEEK))
        period, now = Period(after(-43_200), after(-43_200) + timedelta(days=7)), T0 + timedelta(days=1)
        with server.state.database.read() as session:
            made = cache_report(session, Query(period, None, SUBJECTS), now)
            assert found == cache_report_json(made, cache_figures(session, made.lines, now))

    def test_pages_hold_every_cache_once_and_the_same_totals(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(None)
        whole = body(ask(server, key, **WEEK))
        for size in ("1", "2", "3", "4"):
            caches, token = [], None
            while True:
                page = body(
                    ask(server, key, **WEEK, pageSize=size, **({"pageToken": token} if token else {}))
                )
                assert page["netNanoUsd"] == whole["netNanoUsd"]
                assert 1 <= len(page["caches"]) <= int(size)
                caches += page["caches"]
                assert len(caches) <= len(whole["caches"])
                token = page.get("nextPageToken")
                if token is None:
                    break
            assert caches == whole["caches"]

    def test_a_page_token_is_for_the_list_it_was_made_for(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(None)
        token = body(ask(server, key, **WEEK, pageSize="1"))["nextPageToken"]
        for query in (
            {"project": projects[0]},
            {"start": "2026-02-01T00:00:00Z"},
            {"end": "2026-03-09T00:00:00Z"},
            {"timeZone": "Asia/Tokyo"},
            {"pageToken": token[:-2] + "AA"},
        ):
            error = refusal(ask(server, key, **(WEEK | {"pageToken": token} | query)), 400)
            assert error["details"][0]["metadata"]["field"] == "pageToken"
        with server.client(key) as client:
            refusal(client.get("/headstart/v1/billing/report", params={**WEEK, "pageToken": token}), 400)

    def test_is_this_month_so_far_when_nothing_is_said(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        found = body(ask(server, server.add_key(projects[0], Scope.BILLING)))
        assert (found["start"], found["end"]) == (
            "2026-03-01T00:00:00.000000Z",
            "2026-03-02T12:00:00.000000Z",
        )
        assert len(found["caches"]) == 2

    def test_a_living_cache_is_charged_up_to_now(self, server: Server, projects: tuple[str, str]) -> None:
        server.clock.advance((after(1800.5) - server.clock.now()).total_seconds())
        found = body(ask(server, server.add_key(None), **WEEK))
        assert {each["keptSeconds"] for each in found["caches"]} == {1800}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-03-01T00:30:00Z"}, "start"),
        ({"start": "1969-12-31T23:00:00Z"}, "start"),
        ({"end": "9999-12-31T23:59:59Z"}, "end"),
        ({"timeZone": "Mars"}, "timeZone"),
        ({"groupBy": "cache"}, "groupBy"),
        ({"pageSize": "0"}, "pageSize"),
        ({"pageToken": ""}, "pageToken"),
        ({"start": "2026-03-02T00:00:00Z", "end": "2026-03-01T00:00:00Z"}, "start"),
        ({"project": "a\0b"}, "project"),
    ],
)
def test_names_the_field_of_bad_input(server: Server, query: dict[str, str], field: str) -> None:
    error = refusal(ask(server, server.add_key(None), **query), 400)
    assert error["status"] == "INVALID_ARGUMENT"
    assert error["details"][0]["metadata"]["field"] == field


def test_refuses_to_read_for_long(
    server: Server, projects: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.native.cache_report.MOST_ROWS", 2)
    assert "shorter periods" in refusal(ask(server, server.add_key(None), **WEEK), 400)["message"]


def test_notes_an_hour_that_lies_in_two_days(server: Server, projects: tuple[str, str]) -> None:
    key = server.add_key(None)
    found = body(ask(server, key, start="2026-03-01", timeZone="Asia/Kolkata"))
    assert "an hour counts in the day in which it starts" in found["notes"][0]
    found = body(ask(server, key, start="2026-03-01", timeZone="Europe/Vienna"))
    assert not any("Vienna" in note for note in found["notes"])
