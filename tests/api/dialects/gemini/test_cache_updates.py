from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from models.storage_segment import StorageSegment
from tests.api.harness import ALIAS, MODEL, Server, on_each_database, user
from tests.fakes.clock import START

pytestmark = on_each_database

Create = Callable[..., dict[str, Any]]


@pytest.fixture
def cache(server: Server, http: httpx.Client, create_cache: Create) -> dict[str, Any]:
    """As it is shown 100 seconds after it was made."""
    made = create_cache(displayName="Mine", ttl="300s")
    server.clock.advance(100)
    shown: dict[str, Any] = http.get(f"/v1/{made['name']}").json()
    return shown


def patch(http: httpx.Client, cache: dict[str, Any], body: dict[str, Any], **query: str) -> httpx.Response:
    return http.patch(f"/v1/{cache['name']}", json=body, params=query)


def seconds(body: dict[str, Any]) -> float:
    """From START to the expiry."""
    return (datetime.fromisoformat(body["expireTime"]) - START).total_seconds()


def segment_end(server: Server, cache: dict[str, Any]) -> datetime:
    with server.state.database.read() as session:
        row = session.get(StorageSegment, cache["name"].removeprefix("cachedContents/"))
        assert row is not None
        return row.ends_at


class TestUpdate:
    def test_a_ttl_counts_from_now_and_moves_the_bill_too(
        self, server: Server, http: httpx.Client, cache: dict[str, Any]
    ) -> None:
        body = patch(http, cache, {"ttl": "60.5s"}).json()
        assert body == cache | {
            "expireTime": "2026-05-04T12:02:40.750000Z",
            "updateTime": "2026-05-04T12:01:40.250000Z",
        }
        assert segment_end(server, cache) == START + timedelta(seconds=160.5)
        assert http.get(f"/v1/{cache['name']}").json() == body

    def test_an_instant(self, http: httpx.Client, cache: dict[str, Any]) -> None:
        assert seconds(patch(http, cache, {"expireTime": "2026-05-04T12:10:00.250Z"}).json()) == 600
        assert seconds(patch(http, cache, {"expire_time": "2026-05-04T12:03:00.250"}).json()) == 180

    @pytest.mark.parametrize(
        ("body", "query"),
        [
            ({"ttl": "60s"}, {"updateMask": "ttl"}),
            ({"ttl": "60s"}, {"update_mask": "ttl"}),
            ({"expireTime": "2026-05-04T12:02:40.25Z"}, {"update_mask": "expire_time"}),
            ({"expireTime": "2026-05-04T12:02:40.25Z"}, {"updateMask": "expireTime"}),
            ({"ttl": "60s"}, {"updateMask": "*"}),
            ({"ttl": "60s", "expireTime": "2026-05-09T12:00:00Z"}, {"updateMask": "ttl"}),
        ],
    )
    def test_a_mask_may_name_what_is_changed(
        self, http: httpx.Client, cache: dict[str, Any], body: dict[str, Any], query: dict[str, str]
    ) -> None:
        assert seconds(patch(http, cache, body, **query).json()) == 160

    def test_the_resource_may_come_back_whole(self, http: httpx.Client, cache: dict[str, Any]) -> None:
        assert seconds(patch(http, cache, cache | {"expireTime": "2026-05-04T12:10:00.25Z"}).json()) == 600

    def test_an_alias_is_no_other_model(self, http: httpx.Client, cache: dict[str, Any]) -> None:
        for model in (MODEL, f"models/{MODEL}", ALIAS):
            assert patch(http, cache, {"ttl": "60s", "model": model}).status_code == 200


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "query", "words"),
        [
            ({}, {}, "nothing to update"),
            ({"displayName": "Mine"}, {}, "nothing to update"),
            ({}, {"updateMask": "ttl"}, "'ttl'"),
            ({"ttl": "60s"}, {"updateMask": "expire_time"}, "'expire_time'"),
            ({"ttl": "60s"}, {"updateMask": "ttl,displayName"}, "'displayName' cannot be updated"),
            ({"ttl": "60s"}, {"updateMask": "nonsense"}, "'nonsense' cannot be updated"),
            ({"ttl": "60s", "expireTime": "2026-05-09T12:00:00Z"}, {}, "expiration"),
            ({"ttl": "60s", "displayName": "Other"}, {}, "'display_name' cannot be updated"),
            ({"ttl": "60s", "model": "other"}, {}, "'model' cannot be updated"),
            ({"ttl": "60s", "contents": [user("x")]}, {}, "'contents' cannot be updated"),
            ({"ttl": "60s", "systemInstruction": user("x")}, {}, "'system_instruction' cannot be updated"),
            ({"ttl": "60s", "tools": [{"googleSearch": {}}]}, {}, "cached_content.tools"),
            ({"ttl": "60s", "toolConfig": {}}, {}, "cached_content.tool_config"),
            ({"ttl": "0s"}, {}, "positive"),
            ({"ttl": "2592001s"}, {}, "at most 2592000"),
            ({"expireTime": "2026-05-04T12:01:40.25Z"}, {}, "in the future"),
            ({"expireTime": "2026-07-04T12:01:40Z"}, {}, "at most 2592000"),
            ({"ttl": "60s", "foo": 1}, {}, "Unknown name"),
            ({"ttl": "60s"}, {"mask": "ttl"}, "Unknown name"),
        ],
    )
    def test_are_told_and_change_nothing(
        self,
        http: httpx.Client,
        cache: dict[str, Any],
        body: dict[str, Any],
        query: dict[str, str],
        words: str,
    ) -> None:
        response = patch(http, cache, body, **query)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
        assert http.get(f"/v1/{cache['name']}").json() == cache

    def test_an_expired_cache_is_not_brought_back(
        self, server: Server, http: httpx.Client, cache: dict[str, Any]
    ) -> None:
        server.clock.advance(200)
        assert patch(http, cache, {"ttl": "60s"}).status_code == 403
