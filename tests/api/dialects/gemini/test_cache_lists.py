from collections.abc import Callable
from typing import Any

import httpx
import pytest

from models.api_key import Scope
from tests.api.harness import Server, on_each_database

pytestmark = on_each_database

ROUTE = "/v1/cachedContents"
Create = Callable[..., dict[str, Any]]


@pytest.fixture
def five(server: Server, create_cache: Create) -> list[str]:
    """Names of five caches, newest first."""
    names = []
    for _ in range(5):
        server.clock.advance(1)
        names.append(create_cache()["name"])
    return names[::-1]


def page(http: httpx.Client, **query: Any) -> tuple[list[str], str | None]:
    response = http.get(ROUTE, params=query)
    assert response.status_code == 200, response.text
    body = response.json()
    return [cache["name"] for cache in body.get("cachedContents", [])], body.get("nextPageToken")


def walk(http: httpx.Client, size: int) -> list[list[str]]:
    names, token = page(http, pageSize=size)
    pages = [names]
    while token is not None:
        names, token = page(http, pageSize=size, pageToken=token)
        pages.append(names)
    return pages


def test_an_empty_list_is_an_empty_object(http: httpx.Client) -> None:
    assert http.get(ROUTE).json() == {}


def test_is_newest_first_and_the_last_page_has_no_token(http: httpx.Client, five: list[str]) -> None:
    assert page(http) == (five, None)
    assert walk(http, 2) == [five[:2], five[2:4], five[4:]]
    assert walk(http, 5) == [five]
    assert walk(http, 1) == [[name] for name in five]


def test_caches_of_one_instant_are_all_listed_once(http: httpx.Client, create_cache: Create) -> None:
    names = {create_cache()["name"] for _ in range(7)}
    pages = walk(http, 2)
    assert {name for names in pages for name in names} == names
    assert [len(each) for each in pages] == [2, 2, 2, 1]


@pytest.mark.parametrize(
    "size",
    [{}, {"pageSize": 0}, {"pageSize": ""}, {"page_size": 1001}, {"pageSize": 2**31 - 1}, {"pageSize": "+5"}],
)
def test_zero_is_the_default_and_too_much_is_the_most(
    http: httpx.Client, five: list[str], size: dict[str, Any]
) -> None:
    assert page(http, **size) == (five, None)


@pytest.mark.parametrize("size", ["-1", "x", str(2**31), str(-(2**31)), "1.5", "٣", "9" * 30])
def test_a_bad_page_size_is_named(http: httpx.Client, size: str) -> None:
    response = http.get(ROUTE, params={"pageSize": size})
    assert response.status_code == 400
    assert "page_size" in response.json()["error"]["message"]


def test_snake_case_parameters_work(http: httpx.Client, five: list[str]) -> None:
    names, token = page(http, page_size=3)
    assert names == five[:3]
    assert page(http, page_size=3, page_token=token) == (five[3:], None)


def test_an_unknown_parameter_is_refused_and_googles_own_are_not(http: httpx.Client) -> None:
    response = http.get(ROUTE, params={"pagesise": 3})
    assert response.status_code == 400
    assert 'Unknown name "pagesise"' in response.json()["error"]["message"]
    assert (
        http.get(
            ROUTE, params={"prettyPrint": "false", "fields": "*", "$alt": "json;enum-encoding=int"}
        ).status_code
        == 200
    )
    assert http.get(ROUTE, params={"alt": "proto"}).status_code == 400


def test_a_cache_made_meanwhile_disturbs_no_walk(
    http: httpx.Client, five: list[str], create_cache: Create
) -> None:
    names, token = page(http, pageSize=2)
    create_cache()
    assert page(http, pageSize=9, pageToken=token) == (five[2:], None)
    assert names == five[:2]


def test_a_page_that_a_token_leads_to_is_never_empty(
    server: Server, http: httpx.Client, create_cache: Create
) -> None:
    names = [create_cache(ttl=ttl)["name"] for ttl in ("60s", "60s", "3600s")]
    server.clock.advance(1)
    newest = create_cache()["name"]
    shown, token = page(http, pageSize=2)
    assert shown[0] == newest
    for name in names:
        if name not in shown:
            http.delete(f"/v1/{name}")
    server.clock.advance(60)
    left, token = page(http, pageSize=2, pageToken=token)
    assert len(left) == 1
    assert left[0] in set(names) - set(shown)
    assert token is None


def test_such_a_page_shows_a_cache_as_it_ended(
    server: Server, http: httpx.Client, create_cache: Create
) -> None:
    create_cache(ttl="60s")
    server.clock.advance(1)
    create_cache()
    _, token = page(http, pageSize=1)
    server.clock.advance(60)
    body = http.get(ROUTE, params={"pageToken": token}).json()
    assert body["cachedContents"][0]["expireTime"] == "2026-05-04T12:01:00.250000Z"
    assert list(body) == ["cachedContents"]


def test_a_token_of_another_project_and_garbage_are_refused(
    server: Server, http: httpx.Client, five: list[str]
) -> None:
    _, token = page(http, pageSize=2)
    assert token is not None
    with server.client(server.add_key(server.add_project("pages"), *Scope)) as stranger:
        assert stranger.get(ROUTE, params={"pageToken": token}).status_code == 400
    for garbage in ("x", token[:-1], token + "A", five[0]):
        response = http.get(ROUTE, params={"pageToken": garbage})
        assert response.status_code == 400
        assert "page token" in response.json()["error"]["message"]
