"""What create answers, and what it refuses."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, content, instant, refused
from tests.conformance.servers import TINY, TINY_CONTEXT_TOKENS
from tests.e2e.customer import document, user

CACHES = "/v1beta/cachedContents"
SECOND = timedelta(seconds=1)


def now() -> datetime:
    return datetime.now(UTC)


def body(**more: Any) -> dict[str, Any]:
    return {"model": f"models/{TINY}", "contents": content(70, "create"), **more}


def test_15_create_returns_what_a_cache_is_and_nothing_of_its_content(built_in: Client) -> None:
    cache = built_in.create(content(70, "create"), systemInstruction="Be brief.", displayName="Mine")
    assert cache["name"].startswith("cachedContents/")
    assert cache["model"] == f"models/{built_in.host.model}"
    assert cache["displayName"] == "Mine"
    assert cache["usageMetadata"]["totalTokenCount"] > 70
    assert instant(cache["createTime"]) <= instant(cache["updateTime"]) <= instant(cache["expireTime"])
    assert not {"contents", "systemInstruction", "tools", "toolConfig", "ttl"} & cache.keys()
    assert built_in.create(content(70, "unnamed"))["displayName"] == ""


def test_15_instants_are_utc_with_z(http: httpx.Client) -> None:
    cache = http.post(CACHES, json=body()).json()
    assert all(cache[name].endswith("Z") for name in ("createTime", "updateTime", "expireTime"))


def test_16_a_name_of_the_clients_is_not_taken(http: httpx.Client) -> None:
    made = [http.post(CACHES, json=body(name="cachedContents/mine")).json()["name"] for _ in range(2)]
    assert "cachedContents/mine" not in made
    assert len(set(made)) == 2
    assert http.get("/v1beta/cachedContents/mine").status_code == 403


def test_17_a_cache_lives_an_hour_from_the_arrival_on(client: Client) -> None:
    before = now()
    cache = client.create(content(2000, "hour"), ttl=None)
    arrival = instant(cache["expireTime"]) - timedelta(hours=1)
    assert before <= arrival <= before + SECOND
    assert arrival == instant(cache["createTime"])


@pytest.mark.parametrize(("ttl", "seconds"), [("300s", 300), ("3.5s", 3.5)])
def test_18_a_ttl_is_seconds_and_their_fractions(client: Client, ttl: str, seconds: float) -> None:
    cache = client.create(content(70, ttl), ttl=ttl)
    assert (instant(cache["expireTime"]) - instant(cache["createTime"])).total_seconds() == seconds


def test_18_any_other_ttl_is_refused(client: Client) -> None:
    name = client.create(content(70, "ttl"))["name"]
    for ttl in ("5m", "-1s", "0s", "", "s", "1e3s", "300"):
        refusals = [
            refused(client.create, content(70, "ttl"), ttl=ttl),
            refused(client.update, name, ttl=ttl),
        ]
        for refusal in refusals:
            assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT"), ttl
            assert refusal.detail("BadRequest")["fieldViolations"][0]["field"] == "cached_content.ttl"


@pytest.mark.parametrize("digits", [0, 3, 6, 9])
@pytest.mark.parametrize("offset", ["Z", "+00:00", "+02:00", "-07:30", ""])
def test_19_an_expire_time_has_any_offset_and_precision(http: httpx.Client, digits: int, offset: str) -> None:
    wanted = (now() + timedelta(hours=2)).replace(microsecond=123456 if digits else 0)
    fraction = "." + "123456789"[:digits] if digits else ""
    hours = {"+02:00": 2, "-07:30": -7.5}.get(offset, 0)
    local = (wanted + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S")
    cache = http.post(CACHES, json=body(expireTime=f"{local}{fraction}{offset}")).json()
    shown = wanted.replace(microsecond=int("123456"[:digits].ljust(6, "0")))
    assert instant(cache["expireTime"]) == shown


def test_19_each_client_sets_an_expire_time_to_come(client: Client) -> None:
    wanted = (now() + timedelta(hours=2)).replace(microsecond=0)
    cache = client.create(content(70, "instant"), expireTime=wanted.isoformat())
    assert instant(cache["expireTime"]) == wanted
    past = (wanted - timedelta(days=1)).isoformat()
    refusal = refused(client.create, content(70, "past"), expireTime=past)
    assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("text", ["tomorrow", "2030-13-01T00:00:00Z", "2030-01-01", "9999-12-31T23:59:59Z"])
def test_19_what_is_no_expire_time_is_refused(http: httpx.Client, text: str) -> None:
    error = http.post(CACHES, json=body(expireTime=text)).json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["details"][0]["metadata"]["field"] == "cached_content.expire_time"


def test_20_ttl_and_expire_time_exclude_each_other(client: Client) -> None:
    both = {"ttl": "300s", "expireTime": (now() + timedelta(hours=2)).isoformat()}
    name = client.create(content(70, "both"))["name"]
    for refusal in (
        refused(client.create, content(70, "both"), **both),
        refused(client.update, name, **both),
    ):
        assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")
        assert "expiration" in refusal.message


def test_21_a_display_name_has_128_characters_of_any_plane(client: Client) -> None:
    for letter in ("x", "ß", "漢", "\U0001d518"):
        assert client.create(content(70, letter), displayName=letter * 128)["displayName"] == letter * 128
        refusal = refused(client.create, content(70, letter), displayName=letter * 129)
        assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")


def test_22_a_model_must_be_named(http: httpx.Client) -> None:
    contents = content(70, "no model")
    for given in ({"contents": contents}, {"contents": contents, "model": ""}):
        answer = http.post(CACHES, json=given)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"][0]["metadata"]["field"] == "cached_content.model"


def test_22_an_unknown_model_cannot_cache(client: Client) -> None:
    refusal = refused(client.create, content(70, "unknown"), model="gemini-9")
    assert (refusal.code, refusal.status) == (404, "NOT_FOUND")
    assert "models/gemini-9 is not found" in refusal.message
    assert "createCachedContent" in refusal.message


def test_23_there_must_be_something_to_cache(http: httpx.Client) -> None:
    for given in ({"model": TINY}, {"model": TINY, "contents": []}, {"model": TINY, "ttl": "300s"}):
        answer = http.post(CACHES, json=given)
        assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_23_a_system_instruction_alone_is_enough(client: Client) -> None:
    cache = client.create(systemInstruction=document(70, "system"))
    assert cache["usageMetadata"]["totalTokenCount"] > 70
    answer = client.ask("Where?", cachedContent=cache["name"])
    assert answer["usageMetadata"]["cachedContentTokenCount"] == cache["usageMetadata"]["totalTokenCount"]


def test_23_empty_contents_beside_a_system_instruction_are_none(http: httpx.Client) -> None:
    system = {"parts": [{"text": document(70, "system")}]}
    alone = {"model": TINY, "systemInstruction": system}
    without, empty = (http.post(CACHES, json=each).json() for each in (alone, {**alone, "contents": []}))
    assert without["usageMetadata"] == empty["usageMetadata"]


def test_24_too_little_is_refused_before_anything_is_computed(client: Client) -> None:
    tokens = client.count([user("A few words.")])["totalTokens"]
    refusal = refused(client.create, [user("A few words.")])
    assert (refusal.code, refusal.status, refusal.reason) == (400, "INVALID_ARGUMENT", "CACHE_TOO_SMALL")
    assert "Cached content is too small" in refusal.message
    assert f"total_token_count={tokens}, min_total_token_count=64" in refusal.message
    assert client.host.books.caches(client.key.project_id) == []


def test_25_too_much_is_refused_with_both_numbers(client: Client) -> None:
    refusal = refused(client.create, content(TINY_CONTEXT_TOKENS + 100, "too much"))
    assert (refusal.code, refusal.status, refusal.reason) == (400, "INVALID_ARGUMENT", "CACHE_TOO_LARGE")
    limit = client.model(TINY)["inputTokenLimit"]
    assert limit == TINY_CONTEXT_TOKENS - 1
    tokens, named = [int(word.strip("().")) for word in refusal.message.split() if "(" in word]
    assert named == limit < tokens
    assert client.host.books.caches(client.key.project_id) == []


def test_26_a_cache_counts_what_count_tokens_counts(client: Client) -> None:
    contents = [*content(70, "count"), {"role": "model", "parts": [{"text": "Yes."}]}, user("Sure?")]
    counted = client.count(contents)["totalTokens"]
    assert client.create(contents)["usageMetadata"]["totalTokenCount"] == counted


def test_26_a_whole_request_counts_likewise(http: httpx.Client) -> None:
    whole = body(systemInstruction={"parts": [{"text": "Be brief."}]})
    counted = http.post(f"/v1beta/models/{TINY}:countTokens", json={"generateContentRequest": whole}).json()
    created = http.post(CACHES, json=whole).json()
    assert created["usageMetadata"]["totalTokenCount"] == counted["totalTokens"]
