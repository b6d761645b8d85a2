"""What becomes of a cache: seen, extended, deleted, expired, and hidden from strangers."""

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, content, instant, refused
from tests.conformance.refusal import Refusal
from tests.conformance.servers import TINY, Host, Key
from tests.e2e.customer import GONE, greedy, user, without_cost

SECOND = timedelta(seconds=1)
CACHES = "/v1beta/cachedContents"
TOOL = {"functionDeclarations": [{"name": "f"}]}


def now() -> datetime:
    return datetime.now(UTC)


def made(http: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = http.post(CACHES, json={"model": TINY, "contents": content(70, "life"), **more})
    assert answer.status_code == 200, answer.text
    cache: dict[str, Any] = answer.json()
    return cache


def uses(client: Client, name: str) -> Iterator[Callable[[], object]]:
    """Every way to use a cache."""
    yield lambda: client.get(name)
    yield lambda: client.update(name, ttl="300s")
    yield lambda: client.ask("Where?", cachedContent=name)
    yield lambda: client.stream("Where?", cachedContent=name)
    yield lambda: client.delete(name)


def assert_gone(client: Client, name: str, reason: str) -> list[Refusal]:
    refusals = [refused(use) for use in uses(client, name)]
    for refusal in refusals:
        assert (refusal.code, refusal.status, refusal.message) == (403, "PERMISSION_DENIED", GONE)
        assert refusal.reason == reason
    return refusals


def test_28_get_answers_what_create_answered(client: Client) -> None:
    cache = client.create(content(70, "get"), displayName="Got")
    assert without_cost(client.get(cache["name"])) == without_cost(cache)
    assert without_cost(client.get(cache["name"].removeprefix("cachedContents/"))) == without_cost(cache)


def test_29_a_ttl_counts_from_its_patch_on(client: Client) -> None:
    cache = client.create(content(70, "patch"), ttl="3600s")
    before = now()
    patched = client.update(cache["name"], ttl="300s")
    started = instant(patched["expireTime"]) - timedelta(seconds=300)
    assert before <= started <= now()
    assert instant(cache["updateTime"]) < instant(patched["updateTime"])
    assert patched["createTime"] == cache["createTime"]
    assert without_cost(client.get(cache["name"])) == without_cost(patched)


def test_30_an_expire_time_is_taken_as_it_is(client: Client) -> None:
    name = client.create(content(70, "patch"))["name"]
    wanted = (now() + timedelta(days=2)).replace(microsecond=0)
    assert instant(client.update(name, expireTime=wanted.isoformat())["expireTime"]) == wanted


@pytest.mark.parametrize(
    ("mask", "body"),
    [
        ({"updateMask": "ttl"}, {"ttl": "300s"}),
        ({"update_mask": "ttl"}, {"ttl": "300s"}),
        ({"updateMask": "expireTime"}, {"expireTime": "WANTED"}),
        ({"update_mask": "expire_time"}, {"expireTime": "WANTED"}),
        ({"updateMask": "expire_time"}, {"expire_time": "WANTED"}),
        ({"updateMask": "*"}, {"ttl": "300s"}),
        ({"updateMask": "ttl"}, {"ttl": "300s", "expireTime": "WANTED"}),
    ],
)
def test_30_a_mask_names_the_expiry_in_either_spelling(
    http: httpx.Client, mask: dict[str, str], body: dict[str, str]
) -> None:
    wanted = (now() + timedelta(seconds=300)).isoformat()
    sent = {name: value.replace("WANTED", wanted) for name, value in body.items()}
    answer = http.patch(f"/v1beta/{made(http)['name']}", params=mask, json=sent)
    assert answer.status_code == 200, answer.text
    assert abs(instant(answer.json()["expireTime"]) - instant(wanted)) < SECOND


@pytest.mark.parametrize(
    "path",
    ["displayName", "display_name", "model", "contents", "systemInstruction", "tools", "toolConfig", "foo"],
)
def test_31_a_mask_names_nothing_else(http: httpx.Client, path: str) -> None:
    cache = made(http)
    answer = http.patch(f"/v1beta/{cache['name']}", params={"updateMask": f"ttl,{path}"}, json={"ttl": "60s"})
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert path in error["message"]
    assert without_cost(http.get(f"/v1beta/{cache['name']}").json()) == without_cost(cache)


@pytest.mark.parametrize(
    "changed",
    [
        {"displayName": "Another"},
        {"model": "models/other"},
        {"contents": content(70, "other")},
        {"systemInstruction": {"parts": [{"text": "Be long."}]}},
        {"tools": [TOOL]},
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
    ],
)
def test_31_a_body_changes_nothing_else(http: httpx.Client, changed: dict[str, Any]) -> None:
    cache = made(http)
    answer = http.patch(f"/v1beta/{cache['name']}", json={"ttl": "60s", **changed})
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert without_cost(http.get(f"/v1beta/{cache['name']}").json()) == without_cost(cache)


def test_32_a_patch_of_nothing_is_refused(client: Client) -> None:
    name = client.create(content(70, "nothing"))["name"]
    refusal = refused(client.update, name)
    assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"displayName": ""}'])
def test_32_so_is_a_body_of_nothing(http: httpx.Client, body: bytes) -> None:
    assert http.patch(f"/v1beta/{made(http)['name']}", content=body).status_code == 400


def test_33_delete_answers_with_an_empty_object(client: Client) -> None:
    assert client.delete(client.create(content(70, "delete"))["name"]) == {}


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_33_delete_has_an_empty_body_or_an_empty_object(http: httpx.Client, body: bytes) -> None:
    answer = http.request("DELETE", f"/v1beta/{made(http)['name']}", content=body)
    assert (answer.status_code, answer.content) == (200, b"{}")


def test_34_a_deleted_cache_is_gone_for_every_use(client: Client) -> None:
    name = client.create(content(70, "deleted"))["name"]
    client.delete(name)
    assert_gone(client, name, "CACHE_DELETED")


def test_35_an_expired_cache_is_gone_and_in_no_list(client: Client) -> None:
    name = client.create(content(70, "expired"))["name"]
    other = client.create(content(70, "other"))["name"]
    expire_at = instant(client.update(name, ttl="0.3s")["expireTime"])
    time.sleep(max(0.0, (expire_at - now()).total_seconds()))
    assert [cache["name"] for cache in client.list_caches()] == [other]
    assert_gone(client, name, "CACHE_EXPIRED")


def test_36_another_projects_cache_is_none(client: Client) -> None:
    with client.host.project() as stranger:
        theirs = Client(client.driver, client.host, stranger)
        cache = theirs.create(content(70, "theirs"))
        foreign = assert_gone(client, cache["name"], "CACHE_NOT_FOUND")
        absent = assert_gone(client, "cachedContents/absent", "CACHE_NOT_FOUND")
        assert [refusal.body for refusal in foreign] == [refusal.body for refusal in absent]
        assert without_cost(theirs.get(cache["name"])) == without_cost(cache)
        assert client.list_caches() == []


def test_36_nor_does_the_time_tell_them_apart(http: httpx.Client, tiny_host: Host) -> None:
    """The quicker quarter of calls that take turns. A coarse look: rendering or tokenising would show, one more query need not."""
    with tiny_host.project() as stranger, stranger.http() as theirs:
        name = made(theirs)["name"]
        names = {"foreign": name, "absent": f"cachedContents/{'a' * len(name.partition('/')[2])}"}
        body = {"contents": [user("Where?")], "generationConfig": greedy(2)}
        seconds: dict[str, list[float]] = {kind: [] for kind in names}
        for _ in range(60):
            for kind, asked in names.items():
                started = time.perf_counter()
                assert http.get(f"/v1beta/{asked}").status_code == 403
                asking = {**body, "cachedContent": asked}
                assert http.post(f"/v1beta/models/{TINY}:generateContent", json=asking).status_code == 403
                seconds[kind].append(time.perf_counter() - started)
        foreign, absent = (statistics.quantiles(seconds[kind])[0] for kind in ("foreign", "absent"))
        assert abs(foreign - absent) < max(0.001, 0.2 * absent)


def test_36_a_key_of_the_same_project_is_no_stranger(tiny_host: Host, key: Key, http: httpx.Client) -> None:
    with tiny_host.new_key(key.project_id).http() as colleague:
        name = made(colleague)["name"]
        assert http.get(f"/v1beta/{name}").status_code == 200
