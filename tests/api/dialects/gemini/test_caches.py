import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.errors import CACHE_GONE
from core.errors import ArenaFull, Unavailable
from core.messages import BuildCache, DropCache
from models.api_key import Scope
from models.cache import Cache
from models.usage import Usage
from tests.api.harness import ALIAS, MODEL, Server, on_each_database, user, words
from tests.fakes.clock import START
from tests.fakes.worker import Script

pytestmark = on_each_database

ROUTE = "/v1/cachedContents"
Create = Callable[..., dict[str, Any]]


def content(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "contents": [user(words(100))]} | fields


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()["error"]
    assert found["code"] == status
    return found


def reason(response: httpx.Response) -> str:
    return str(response.json()["error"]["details"][0]["reason"])


def rows(server: Server, kind: type[Cache] | type[Usage]) -> int:
    with server.state.database.read() as session:
        return session.scalars(
            select(func.count()).select_from(kind).where(kind.project_id == server.project_id)
        ).one()


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


class TestCreate:
    def test_answers_the_whole_resource_and_nothing_of_its_content(self, http: httpx.Client) -> None:
        response = http.post(ROUTE, json=content(displayName="Mine", ttl="300s"))
        assert response.status_code == 200
        body = response.json()
        assert body.pop("name").startswith("cachedContents/")
        tokens = body.pop("usageMetadata")["totalTokenCount"]
        assert tokens > 100
        written = {"cache_write_tokens": tokens * 100, "cache_storage_token_seconds": 0}
        assert body == {
            "model": "models/tiny",
            "displayName": "Mine",
            "createTime": "2026-05-04T12:00:00.250000Z",
            "updateTime": "2026-05-04T12:00:00.250000Z",
            "expireTime": "2026-05-04T12:05:00.250000Z",
            "state": "ACTIVE",
            "tier": "RAM",
            "hitCount": 0,
            "cost": {"amountNanoUsd": tokens * 100, "nanoUsdByMeter": written},
        }

    @pytest.mark.parametrize("version", ["v1", "v1beta", "v1alpha"])
    def test_works_under_each_version(self, http: httpx.Client, version: str) -> None:
        name = http.post(f"/{version}/cachedContents", json=content()).json()["name"]
        assert http.get(f"/{version}/{name}").status_code == 200

    def test_an_unset_display_name_is_an_empty_one(self, create_cache: Create) -> None:
        assert create_cache()["displayName"] == ""

    @pytest.mark.parametrize("model", [MODEL, f"models/{MODEL}", ALIAS, f"models/{ALIAS}", "org/other"])
    def test_an_alias_leads_to_the_served_model(self, create_cache: Create, model: str) -> None:
        assert create_cache(model=model)["model"] == "models/tiny"

    def test_reads_snake_case_and_ignores_a_name(self, create_cache: Create) -> None:
        body = create_cache(name="cachedContents/mine", display_name="x", system_instruction=user("Be kind."))
        assert body["displayName"] == "x"
        assert body["name"] != "cachedContents/mine"

    @pytest.mark.parametrize("contents", [None, []])
    def test_a_system_instruction_is_enough(self, create_cache: Create, contents: Any) -> None:
        assert create_cache(contents=contents, systemInstruction=user(words(100)))

    def test_may_end_on_a_model_turn(self, create_cache: Create) -> None:
        assert create_cache(contents=[user(words(100)), {"role": "model", "parts": [{"text": "Yes."}]}])

    def test_an_inline_text_file_is_text(self, create_cache: Create) -> None:
        plain = create_cache(contents=[user("abc " * 100)])
        blob = {"mimeType": "text/plain", "data": base64.b64encode(b"abc " * 96).decode()}
        inline = create_cache(contents=[{"parts": [{"inlineData": blob}, {"text": "abc " * 4}]}])
        assert inline["usageMetadata"] == plain["usageMetadata"]

    def test_the_count_is_that_of_count_tokens(self, http: httpx.Client, create_cache: Create) -> None:
        request = {"contents": [user(words(100))], "systemInstruction": user("Be brief.")}
        cache = create_cache(**request)
        counted = http.post(
            f"/v1/models/{MODEL}:countTokens", json={"generateContentRequest": request}
        ).json()
        assert counted["totalTokens"] == cache["usageMetadata"]["totalTokenCount"]

    def test_the_worker_is_told_to_build_it(self, server: Server, create_cache: Create) -> None:
        cache = create_cache()
        cache_id = cache["name"].removeprefix("cachedContents/")
        assert server.worker.sent == [BuildCache(cache_id, 1)]


class TestExpiry:
    def test_is_an_hour_after_the_request_arrived(self, create_cache: Create) -> None:
        assert instant(create_cache()["expireTime"]) == START + timedelta(hours=1)

    def test_a_building_time_is_paid_out_of_the_life(self, server: Server) -> None:
        server.script = Script(hold_builds=True)
        with (
            server.client() as http,
            server.later(lambda: http.post(ROUTE, json=content(ttl="60s"))) as coming,
        ):
            server.wait_for(lambda: len(server.worker.sent) == 1)
            server.clock.advance(40)
            server.worker.release.set()
            body = coming.result().json()
        assert instant(body["expireTime"]) == START + timedelta(seconds=60)
        assert instant(body["createTime"]) == START
        assert instant(body["updateTime"]) == START + timedelta(seconds=40)

    def test_a_build_that_outlives_the_cache_fails_unbilled(self, server: Server) -> None:
        server.script = Script(hold_builds=True)
        with (
            server.client() as http,
            server.later(lambda: http.post(ROUTE, json=content(ttl="60s"))) as coming,
        ):
            server.wait_for(lambda: len(server.worker.sent) == 1)
            server.clock.advance(60)
            server.worker.release.set()
            assert error(coming.result(), 504)["status"] == "DEADLINE_EXCEEDED"
        assert rows(server, Usage) == 0

    def test_an_instant_with_an_offset(self, create_cache: Create) -> None:
        assert (
            create_cache(expireTime="2026-05-04T15:00:00.123456789+02:00")["expireTime"]
            == "2026-05-04T13:00:00.123456Z"
        )

    @pytest.mark.parametrize(
        ("fields", "path"),
        [
            ({"ttl": "5m"}, "cached_content.ttl"),
            ({"ttl": "-1s"}, "cached_content.ttl"),
            ({"ttl": "0s"}, "cached_content.ttl"),
            ({"ttl": ""}, "cached_content.ttl"),
            ({"ttl": 300}, "cached_content.ttl"),
            ({"ttl": "2592001s"}, "cached_content.ttl"),
            ({"expireTime": "2026-05-04T12:00:00Z"}, "cached_content.expire_time"),
            ({"expireTime": "soon"}, "cached_content.expire_time"),
            ({"ttl": "300s", "expireTime": "2026-05-05T12:00:00Z"}, "cached_content.ttl"),
        ],
    )
    def test_a_bad_one_is_named_and_nothing_is_made(
        self, server: Server, http: httpx.Client, fields: dict[str, Any], path: str
    ) -> None:
        found = error(http.post(ROUTE, json=content(**fields)))
        assert found["details"][1]["fieldViolations"][0]["field"] == path
        assert rows(server, Cache) == 0


class TestRefusals:
    def test_too_small_has_googles_words_and_no_work_is_done(
        self, server: Server, http: httpx.Client
    ) -> None:
        response = http.post(ROUTE, json=content(contents=[user("Hello.")]))
        message = error(response)["message"]
        assert message.startswith("Cached content is too small. total_token_count=")
        assert message.endswith(", min_total_token_count=64")
        assert server.worker.sent == []
        assert rows(server, Cache) == 0

    def test_the_floor_itself_is_enough(self, http: httpx.Client) -> None:
        for count in range(30, 60):
            response = http.post(ROUTE, json=content(contents=[user("a " * count)]))
            if response.status_code == 200:
                assert response.json()["usageMetadata"]["totalTokenCount"] == 64
                return
            assert reason(response) == "CACHE_TOO_SMALL"
        pytest.fail("no text of 64 tokens was found")

    def test_too_large_has_both_numbers(self, server: Server, http: httpx.Client) -> None:
        message = error(http.post(ROUTE, json=content(contents=[user(words(1000))])))["message"]
        assert message.startswith("The input token count (")
        assert message.endswith(") exceeds the maximum number of tokens allowed (399).")
        assert rows(server, Cache) == 0

    def test_much_too_large_is_refused_by_its_bytes(self, http: httpx.Client) -> None:
        response = http.post(ROUTE, json=content(contents=[user("a" * 90_000)]))
        assert reason(response) == "CACHE_TOO_LARGE"

    @pytest.mark.parametrize(
        ("body", "words_of_it"),
        [
            ({"contents": [user("x")]}, "model"),
            ({"model": MODEL}, "nothing to cache"),
            ({"model": MODEL, "contents": []}, "nothing to cache"),
            (content(contents=[{"role": "user"}]), "cached_content.contents[0].parts"),
            (content(contents=[{"role": "system", "parts": [{"text": "x"}]}]), "valid role"),
            (content(contents=[{"parts": [{}]}]), "cached_content.contents[0].parts[0]"),
            (
                content(contents=[{"parts": [{"text": "a", "inlineData": {"mimeType": "text/plain"}}]}]),
                "oneof",
            ),
            (content(systemInstruction={"parts": []}), "cached_content.system_instruction.parts"),
            (content(tools=[{"googleSearch": {}}]), "cached_content.tools"),
            (content(toolConfig={}), "cached_content.tool_config"),
            (content(displayName="x" * 129), "cached_content.display_name"),
            (content(foo=1), "Unknown name \"foo\" at 'cached_content'"),
            (
                content(contents=[{"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]),
                "image/png",
            ),
            (
                content(contents=[{"parts": [{"inlineData": {"mimeType": "text/plain", "data": "AA=="}}]}]),
                "NUL",
            ),
        ],
    )
    def test_a_bad_body_is_400_and_names_what_is_wrong(
        self, server: Server, http: httpx.Client, body: dict[str, Any], words_of_it: str
    ) -> None:
        assert words_of_it in error(http.post(ROUTE, json=body))["message"]
        assert rows(server, Cache) == 0
        assert server.worker.sent == []

    def test_an_unknown_model_is_404_and_names_the_method(self, http: httpx.Client) -> None:
        found = error(http.post("/v1beta/cachedContents", json=content(model="gemini-99")), 404)
        assert found["message"].startswith(
            "models/gemini-99 is not found for API version v1beta, or is not supported for createCachedContent."
        )

    def test_more_caches_than_a_project_may_have_are_429(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        for _ in range(30):
            create_cache()
        found = error(http.post(ROUTE, json=content()), 429)
        assert found["status"] == "RESOURCE_EXHAUSTED"
        assert found["details"][1]["@type"].endswith("QuotaFailure")
        assert rows(server, Cache) == 30
        # Another project is not affected.
        with server.client(server.add_key(server.add_project("other quota"), *Scope)) as other:
            assert other.post(ROUTE, json=content()).status_code == 200

    def test_a_build_without_room_fails_unbilled(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(build_error=ArenaFull("Needs 3 blocks, 1 is free."))
        assert "3 blocks" in error(http.post(ROUTE, json=content()), 429)["message"]
        assert rows(server, Usage) == 0
        assert http.get(ROUTE).json() == {}

    def test_a_worker_that_takes_nothing_leaves_nothing(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(refusal=Unavailable("Draining.", retry_after_seconds=2))
        response = http.post(ROUTE, json=content())
        assert error(response, 503)["status"] == "UNAVAILABLE"
        assert response.headers["retry-after"] == "2"
        with server.state.database.read() as session:
            states = session.scalars(select(Cache.state).where(Cache.project_id == server.project_id)).all()
        assert states == ["FAILED"]
        assert rows(server, Usage) == 0


class TestGone:
    """Absent, foreign, expired, deleted: all read alike."""

    def use(self, http: httpx.Client, name: str) -> list[httpx.Response]:
        ask = {"contents": [user("Hi")], "cachedContent": name}
        return [
            http.get(f"/v1/{name}"),
            http.patch(f"/v1/{name}", json={"ttl": "60s"}),
            http.delete(f"/v1/{name}"),
            http.post(f"/v1/models/{MODEL}:generateContent", json=ask),
            http.post(f"/v1/models/{MODEL}:streamGenerateContent?alt=sse", json=ask),
            http.post(f"/v1/models/{MODEL}:countTokens", json={"generateContentRequest": ask}),
        ]

    def check(self, http: httpx.Client, name: str, expected: str) -> None:
        for response in self.use(http, name):
            found = error(response, 403)
            assert (found["status"], found["message"]) == ("PERMISSION_DENIED", CACHE_GONE)
            assert found["details"] == [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": expected,
                    "domain": "headstart",
                }
            ]

    @pytest.mark.parametrize(
        "name",
        [
            "cachedContents/absent",
            "cachedContents/" + "a" * 24,
            "cachedContents/%F0%9F%98%80",
            "cachedContents/%00",
        ],
    )
    def test_absent(self, http: httpx.Client, name: str) -> None:
        self.check(http, name, "CACHE_NOT_FOUND")

    def test_deleted(self, http: httpx.Client, create_cache: Create) -> None:
        name = create_cache()["name"]
        assert http.delete(f"/v1/{name}").status_code == 200
        self.check(http, name, "CACHE_DELETED")

    def test_expired_by_itself_at_that_very_instant(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        name = create_cache(ttl="60s")["name"]
        server.clock.advance(59.999999)
        assert http.get(f"/v1/{name}").status_code == 200
        server.clock.advance(0.000001)
        self.check(http, name, "CACHE_EXPIRED")
        assert http.get(ROUTE).json() == {}

    def test_another_projects(self, server: Server, http: httpx.Client, create_cache: Create) -> None:
        name = create_cache()["name"]
        with server.client(server.add_key(server.add_project("stranger"), *Scope)) as stranger:
            for foreign, absent in zip(
                self.use(stranger, name), self.use(stranger, "cachedContents/absent"), strict=True
            ):
                assert (foreign.status_code, foreign.text) == (absent.status_code, absent.text)
            self.check(stranger, name, "CACHE_NOT_FOUND")
            assert stranger.get(ROUTE).json() == {}
        assert http.get(f"/v1/{name}").status_code == 200

    def test_one_that_is_still_built(self, server: Server) -> None:
        server.script = Script(hold_builds=True)
        with server.client() as http, server.later(lambda: http.post(ROUTE, json=content())) as coming:
            server.wait_for(lambda: len(server.worker.sent) == 1)
            message = server.worker.sent[0]
            assert isinstance(message, BuildCache)
            with server.client() as other:
                self.check(other, f"cachedContents/{message.cache_id}", "CACHE_NOT_FOUND")
                assert other.get(ROUTE).json() == {}
            server.worker.release.set()
            assert coming.result().status_code == 200


class TestDelete:
    @pytest.mark.parametrize("body", [b"", b"{}"])
    def test_answers_an_empty_object_and_drops_the_kv(
        self, server: Server, http: httpx.Client, create_cache: Create, body: bytes
    ) -> None:
        name = create_cache()["name"]
        response = http.request("DELETE", f"/v1/{name}", content=body)
        assert (response.status_code, response.json()) == (200, {})
        assert server.worker.sent[-1] == DropCache(name.removeprefix("cachedContents/"))

    def test_holds_though_no_worker_listens(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        name = create_cache()["name"]
        server.script = Script(refusal=Unavailable("Draining."))
        assert http.delete(f"/v1/{name}").status_code == 200
        assert http.get(f"/v1/{name}").status_code == 403

    def test_drops_the_kv_although_the_answer_of_the_database_is_lost(
        self,
        server: Server,
        http: httpx.Client,
        create_cache: Create,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Sent again, there is nothing left to delete."""
        name, write = create_cache()["name"], server.state.database.write

        @contextmanager
        def writing() -> Iterator[Session]:
            with write() as session:
                yield session
            raise Unavailable("The connection was cut.", retry_after_seconds=1)

        with monkeypatch.context() as broken:
            broken.setattr(server.state.database, "write", writing)
            assert http.delete(f"/v1/{name}").status_code == 503
            assert http.delete("/v1/cachedContents/absent").status_code == 403
        assert http.delete(f"/v1/{name}").status_code == 403
        assert server.worker.sent[-1] == DropCache(name.removeprefix("cachedContents/"))

    def test_content_is_gone_from_the_database(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        name = create_cache()["name"]
        http.delete(f"/v1/{name}")
        with server.state.database.read() as session:
            row = session.get(Cache, name.removeprefix("cachedContents/"))
            assert row is not None
            assert (row.prefix_text, row.messages) == (None, None)


def test_get_answers_what_create_answered(http: httpx.Client, create_cache: Create) -> None:
    cache = create_cache(displayName="é\u2028😀")
    response = http.get(f"/v1/{cache['name']}")
    assert response.json() == cache
    assert response.content.isascii()
    assert json.loads(response.content)["displayName"] == "é\u2028😀"
