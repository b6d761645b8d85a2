"""Lists of caches, and paging through them while caches come and go."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, content, refused
from tests.conformance.servers import TINY, Host, Key

CACHES = "/v1beta/cachedContents"


def made(http: httpx.Client, seed: object) -> str:
    body = {"model": TINY, "contents": content(64, str(seed))}
    answer = http.post(CACHES, json=body)
    assert answer.status_code == 200, answer.text
    name: str = answer.json()["name"]
    return name


def page(http: httpx.Client, **query: Any) -> dict[str, Any]:
    answer = http.get(CACHES, params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_37_an_empty_list_is_an_empty_object(http: httpx.Client) -> None:
    assert http.get(CACHES).content == b"{}"


def test_37_each_client_reads_an_empty_list(client: Client) -> None:
    assert client.list_caches() == []
    assert client.list_caches(pageSize=1) == []


def test_38_the_newest_comes_first(client: Client) -> None:
    names = [client.create(content(64, str(number)))["name"] for number in range(5)]
    for size in ({}, {"pageSize": 1}, {"pageSize": 2}, {"pageSize": 5}, {"pageSize": 1000}):
        assert [cache["name"] for cache in client.list_caches(**size)] == names[::-1]


def test_38_a_page_has_what_was_asked_for(http: httpx.Client) -> None:
    for number in range(3):
        made(http, number)
    for size, found in ((1, 1), (2, 2), (3, 3), (1000, 3), (1001, 3), (99999, 3), (0, 3), ("", 3)):
        for name in ("pageSize", "page_size"):
            assert len(page(http, **{name: size})["cachedContents"]) == found
    for wrong in ("-1", "two", "1.5"):
        assert http.get(CACHES, params={"pageSize": wrong}).status_code == 400


def test_39_the_last_page_leads_nowhere(http: httpx.Client) -> None:
    for number in range(4):
        made(http, number)
    first = page(http, pageSize=2)
    second = page(http, pageSize=2, pageToken=first["nextPageToken"])
    assert first["nextPageToken"]
    assert "nextPageToken" not in second
    assert "nextPageToken" not in page(http)
    assert "nextPageToken" not in page(http, pageSize=4)


def test_40_a_page_that_a_token_leads_to_is_never_empty(client: Client, http: httpx.Client) -> None:
    names = [made(http, number) for number in range(4)]
    token = page(http, pageSize=2)["nextPageToken"]
    for name in names[:2]:
        http.patch(f"/v1beta/{name}", json={"ttl": "0.05s"})
    time.sleep(0.1)
    (ended,) = client.list_caches(pageSize=2, pageToken=token)
    assert ended["name"] == names[1]
    assert [cache["name"] for cache in client.list_caches(pageSize=2)] == names[:1:-1]


def test_41_a_page_token_is_the_projects_own(client: Client, http: httpx.Client) -> None:
    with client.host.project() as stranger, stranger.http() as theirs:
        for number in range(2):
            made(theirs, number)
            made(http, number)
        foreign = page(theirs, pageSize=1)["nextPageToken"]
    ours = page(http, pageSize=1)["nextPageToken"]
    changed = ours[:-2] + ("AA" if ours[-2:] != "AA" else "BB")
    for token in ("garbage", foreign, changed, ours + "A", "ä"):
        refusal = refused(client.list_caches, pageSize=1, pageToken=token)
        assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT"), token
    assert len(client.list_caches(pageSize=1, pageToken=ours)) == 1


@contextmanager
def coming_and_going(key: Key) -> Iterator[None]:
    """Caches are created, live for an instant, and expire or are deleted, all the time."""
    done = Event()

    def churn(worker: int) -> int:
        with key.http() as http:
            for number in count():
                if done.is_set():
                    return number
                name = f"/v1beta/{made(http, f'{worker} {number}')}"
                if number % 2:
                    http.delete(name)
                else:
                    http.patch(name, json={"ttl": f"{0.01 + 0.1 * (number % 5)}s"})
        raise AssertionError

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(churn, worker) for worker in range(2)]
        try:
            yield
        finally:
            done.set()
        assert all(worker.result() > 0 for worker in workers)


@pytest.mark.parametrize("size", [1, 3])
def test_42_a_list_ends_and_shows_each_live_cache_once(
    client: Client, http: httpx.Client, key: Key, tiny_host: Host, size: int
) -> None:
    lasting = [made(http, f"lasting {number}") for number in range(7)]
    with coming_and_going(key):
        for _ in range(3):
            names = [cache["name"] for cache in client.list_caches(pageSize=size)]
            assert len(set(names)) == len(names)
            assert [name for name in names if name in lasting] == lasting[::-1]
    assert len(tiny_host.books.caches(key.project_id)) > len(lasting)
