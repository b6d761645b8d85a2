from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from billing.periods import Period
from billing.report import Query, Subject, report
from billing.report_json import report_json
from billing.verify import verify
from models.api_key import Scope
from tests.api.harness import Server
from tests.billing.rows import T0, add_cache, add_project, after, generate, write

ROUTE = "/headstart/v1/billing/report"
WEEK = {"start": "2026-03-01T00:00:00Z", "end": "2026-03-08T00:00:00Z"}


def set_clock(server: Server, at: datetime) -> None:
    server.clock.advance((at - server.clock.now()).total_seconds())


@pytest.fixture
def projects(server: Server) -> tuple[str, str]:
    """Two projects that owe something in the week, seen a day after T0."""
    set_clock(server, T0 + timedelta(days=1))
    with server.state.database.write() as session:
        first, second = add_project(session, "first"), add_project(session, "second")
        for project_id in (first, second):
            add_cache(session, project_id, f"c_{project_id}", tokens=1000, end=after(3600))
            write(session, project_id, f"c_{project_id}", tokens=1000)
            generate(session, project_id, f"r_{project_id}", prompt=20, output=5)
    return first, second


def ask(server: Server, key: str, **query: str) -> httpx.Response:
    with server.client(key) as client:
        return client.get(ROUTE, params={"groupBy": "project,cache"} | query)


def body(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == status
    return error


class TestWhoMayAsk:
    def test_no_key_is_refused(self, server: Server) -> None:
        refusal(httpx.get(server.url + ROUTE), 401)

    def test_another_projects_bill_is_as_absent_as_none(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(projects[0], Scope.BILLING)
        foreign = refusal(ask(server, key, **WEEK, project=projects[1]), 404)
        absent = refusal(ask(server, key, **WEEK, project="proj_absent"), 404)
        assert foreign["message"].replace(projects[1], "proj_absent") == absent["message"]
        assert foreign["details"] == absent["details"]
        assert foreign["details"][0]["reason"] == "PROJECT_NOT_FOUND"

    def test_a_key_without_the_scope_is_refused(self, server: Server, projects: tuple[str, str]) -> None:
        key = server.add_key(projects[0], Scope.CACHES, Scope.GENERATE, Scope.ADMIN)
        error = refusal(ask(server, key), 403)
        assert "billing" in error["message"]

    def test_a_project_sees_its_own_bill_alone(self, server: Server, projects: tuple[str, str]) -> None:
        key = server.add_key(projects[0], Scope.BILLING)
        for query in ({}, {"project": projects[0]}, {"project": "first"}):
            found = body(ask(server, key, **WEEK, **query))
            assert {each["project"] for each in found["groups"]} == {projects[0]}

    def test_an_operator_sees_all_or_the_one_asked_for(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(None)
        found = body(ask(server, key, **WEEK))
        assert {each["project"] for each in found["groups"]} == set(projects)
        for word in ("second", projects[1]):
            found = body(ask(server, key, **WEEK, project=word))
            assert {each["project"] for each in found["groups"]} == {projects[1]}
        refusal(ask(server, key, **WEEK, project="absent"), 404)


class TestReport:
    def test_answers_integers_under_camel_case_names(self, server: Server, projects: tuple[str, str]) -> None:
        found = body(ask(server, server.add_key(projects[0], Scope.BILLING), **WEEK))
        storage = 1000 * 3600 * 10**9 // (3600 * 10**6)
        amounts = {
            "cache_write_tokens": (1000, 100_000, 0, 1),
            "cache_storage_token_seconds": (3_600_000, storage, 0, 0),
            "cache_read_tokens": (0, 0, 0, 0),
            "implicit_cache_read_tokens": (0, 0, 0, 0),
            "input_tokens": (20, 2_000, 2_000, 1),
            "output_tokens": (5, 2_000, 2_000, 1),
        }
        assert found["meters"] == [
            {
                "meter": meter,
                "unit": "token-seconds" if "storage" in meter else "tokens",
                "quantity": quantity,
                "amountNanoUsd": amount,
                "withoutCacheNanoUsd": without,
                "entries": entries,
            }
            for meter, (quantity, amount, without, entries) in amounts.items()
        ]
        assert found["amountNanoUsd"] == 104_000 + storage
        assert found["savedNanoUsd"] == -100_000 - storage
        assert found["start"] == "2026-03-01T00:00:00.000000Z"
        assert found["end"] == "2026-03-08T00:00:00.000000Z"
        assert found["asOf"] == "2026-03-02T12:00:00.000000Z"
        assert (found["timeZone"], found["groupBy"]) == ("UTC", ["project", "cache"])
        uncached, cached = found["groups"]
        assert (cached["cache"], cached["amountNanoUsd"]) == (f"c_{projects[0]}", 100_000 + storage)
        assert (uncached["cache"], uncached["amountNanoUsd"]) == (None, 4_000)

    def test_equals_what_is_read_from_the_ledger(self, server: Server, projects: tuple[str, str]) -> None:
        found = body(ask(server, server.add_key(None), **WEEK))
        period = Period(after(-43_200), after(-43_200) + timedelta(days=7))
        with server.state.database.read() as session:
            made = report(session, Query(period, None, (Subject.PROJECT, Subject.CACHE)), after(86_400))
            assert list(verify(session, after(3600))) == []
        assert found == report_json(made)

    def test_tells_explicit_and_implicit_hits_apart(self, server: Server, projects: tuple[str, str]) -> None:
        first, _ = projects
        with server.state.database.write() as session:
            generate(
                session, first, "hit", prompt=1300, cached=1000, cache_id=f"c_{first}", implicit=256, output=0
            )
            generate(session, first, "miss", prompt=100, implicit=64, output=0)
        found = body(ask(server, server.add_key(first, Scope.BILLING), **WEEK))
        uncached, cached = found["groups"]
        for level, explicit, implicit, hits in (
            (cached, 1000, 256, 1),
            (uncached, 0, 64, 0),
            (found, 1000, 320, 1),
        ):
            quantities = {line["meter"]: line["quantity"] for line in level["meters"]}
            assert quantities["cache_read_tokens"] == explicit
            assert quantities["implicit_cache_read_tokens"] == implicit
            assert level["hits"] == hits

    def test_pages_hold_every_group_once_and_the_same_total(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(None)
        whole = body(ask(server, key, **WEEK))
        for size in ("1", "2", "3", "4"):
            groups, token = [], None
            while True:
                page = body(
                    ask(server, key, **WEEK, pageSize=size, **({"pageToken": token} if token else {}))
                )
                assert page["amountNanoUsd"] == whole["amountNanoUsd"]
                assert 1 <= len(page["groups"]) <= int(size)
                groups += page["groups"]
                token = page.get("nextPageToken")
                if token is None:
                    break
            assert groups == whole["groups"]

    def test_a_page_token_is_for_the_list_it_was_made_for(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(None)
        token = body(ask(server, key, **WEEK, pageSize="1"))["nextPageToken"]
        for query in (
            {"groupBy": "cache"},
            {"project": projects[0]},
            {"start": "2026-02-01T00:00:00Z"},
            {"end": "2026-03-09T00:00:00Z"},
            {"timeZone": "Asia/Tokyo"},
            {"pageToken": token[:-2] + "AA"},
            {"pageToken": "é"},
        ):
            error = refusal(ask(server, key, **(WEEK | {"pageToken": token} | query)), 400)
            assert error["details"][0]["metadata"]["field"] == "pageToken"
        # One instant is one, however it is written.
        body(ask(server, key, **WEEK | {"start": "2026-03-01T01:00:00+01:00"}, pageToken=token))

    def test_pages_up_to_now_go_on_while_time_does(self, server: Server, projects: tuple[str, str]) -> None:
        key = server.add_key(None)
        token = body(ask(server, key, pageSize="1"))["nextPageToken"]
        server.clock.advance(1)
        assert len(body(ask(server, key, pageToken=token))["groups"]) == 3
        for query in ({"end": "2026-03-08"}, {"start": "2026-02"}):
            refusal(ask(server, key, pageToken=token, **query), 400)
        set_clock(server, T0 + timedelta(days=40))  # another month is another list
        refusal(ask(server, key, pageToken=token), 400)

    def test_days_are_those_of_a_zone(self, server: Server, projects: tuple[str, str]) -> None:
        found = body(ask(server, server.add_key(None), groupBy="day", timeZone="Asia/Kolkata", **WEEK))
        assert [group["day"] for group in found["groups"]] == ["2026-03-01"]
        assert found["timeZone"] == "Asia/Kolkata"
        assert "an hour counts in the day in which it starts" in found["notes"][0]

    def test_is_this_month_so_far_when_nothing_is_said(
        self, server: Server, projects: tuple[str, str]
    ) -> None:
        key = server.add_key(None)
        found = body(ask(server, key))
        assert (found["start"], found["end"]) == (
            "2026-03-01T00:00:00.000000Z",
            "2026-03-02T12:00:00.000000Z",
        )
        assert found["amountNanoUsd"] > 0
        set_clock(server, T0 + timedelta(days=40))
        assert body(ask(server, key))["amountNanoUsd"] == 0

    def test_a_living_cache_is_charged_up_to_now(self, server: Server, projects: tuple[str, str]) -> None:
        set_clock(server, after(60.5))
        found = body(ask(server, server.add_key(projects[0], Scope.BILLING), **WEEK))
        assert found["meters"][1]["quantity"] == 60_000


class TestBadInput:
    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ({"start": "yesterday"}, "start"),
            ({"start": "2026-03-01T00:30:00Z"}, "start"),
            ({"timeZone": "Mars"}, "timeZone"),
            ({"groupBy": "colour"}, "groupBy"),
            ({"groupBy": "day,hour"}, "groupBy"),
            ({"groupBy": "cache,cache"}, "groupBy"),
            ({"pageSize": "0"}, "pageSize"),
            ({"pageSize": "-1"}, "pageSize"),
            ({"pageSize": "10001"}, "pageSize"),
            ({"pageSize": "many"}, "pageSize"),
            ({"pageToken": ""}, "pageToken"),
            ({"end": "2026-03-01T00:00:00"}, "end"),
            ({"end": ""}, "end"),
            ({"start": "2026-03-02T00:00:00Z", "end": "2026-03-01T00:00:00Z"}, "start"),
            ({"start": "2030-01-01T00:00:00Z"}, "start"),
            ({"from": "2026-03-01T00:00:00Z"}, "from"),
            ({"start": "0001-01-01T00:00:00Z", "timeZone": "America/New_York"}, "start"),
            ({"end": "9999-12-31T23:59:59Z"}, "end"),
            ({"end": "9999-12-31", "groupBy": "day"}, "end"),
            ({"project": "a\0b"}, "project"),
        ],
    )
    def test_names_the_field(
        self, server: Server, projects: tuple[str, str], query: dict[str, str], field: str
    ) -> None:
        error = refusal(ask(server, server.add_key(None), **query), 400)
        assert error["status"] == "INVALID_ARGUMENT"
        assert error["details"][0]["metadata"]["field"] == field

    def test_refuses_to_read_for_long(
        self, server: Server, projects: tuple[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("api.native.billing.MOST_ROWS", 2)
        error = refusal(ask(server, server.add_key(None), **WEEK), 400)
        assert "shorter periods" in error["message"]
        assert error["details"][0]["metadata"]["field"] == "start"

    def test_refuses_a_parameter_given_twice(self, server: Server) -> None:
        with server.client(server.add_key(None)) as client:
            refusal(client.get(ROUTE + "?project=a&project=b"), 400)

    def test_hints_at_a_plus_that_became_a_space(self, server: Server) -> None:
        with server.client(server.add_key(None)) as client:
            error = refusal(client.get(ROUTE + "?start=2026-03-01T00:00:00+01:00"), 400)
        assert "%2B" in error["message"]

    def test_takes_the_key_from_the_query(self, server: Server) -> None:
        body(httpx.get(server.url + ROUTE, params={"key": server.add_key(None)}))
