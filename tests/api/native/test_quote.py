"""A quote over HTTP, from the body of the create that makes the cache: the later bill to the nano for the seconds lived, and never less."""

from collections.abc import Sequence
from datetime import timedelta
from math import ceil
from typing import Any

import httpx
import pytest

from billing.bookkeeping import keep_books
from billing.meters import Meter
from billing.periods import Period
from billing.price import ANY
from billing.price_book import load_price_book
from billing.prices import load_prices, store
from billing.quote import Plan, quote
from billing.quote_json import quote_json
from billing.rating import seconds_between, whole_second
from billing.report import Query, Subject, report
from billing.report_json import sums_json
from models.api_key import Scope
from models.cache import Cache
from models.ledger_entry import LedgerEntry
from models.storage_segment import StorageSegment
from models.usage import Usage
from tests.api.harness import ALIAS, MODEL, Server, user, words
from tests.billing.rows import book, faults, joined
from tests.fakes.clock import START
from tests.fakes.worker import Script

ROUTE = "/headstart/v1/billing/quote"
OUTPUT_TOKENS = 3  # of the worker's script


def content(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "contents": [user(words(100))], "ttl": "600s", "expectedHits": 5} | fields


def ask(server: Server, body: dict[str, Any], key: str | None = None, **query: str) -> httpx.Response:
    with server.client(key) as client:
        return client.post(ROUTE, json=body, params=query)


def quoted(server: Server, body: dict[str, Any], key: str | None = None, **query: str) -> dict[str, Any]:
    response = ask(server, body, key, **query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def field(error: dict[str, Any]) -> Any:
    return error["details"][0]["metadata"]["field"]


def change_prices(server: Server, *, seconds: float) -> None:
    """Let keeping and reading cost something else from so many seconds after START on."""
    since = START.replace(microsecond=0) + timedelta(seconds=seconds)
    changed = book(
        {Meter.CACHE_STORAGE_TOKEN_SECONDS: 7_000_000_001, Meter.CACHE_READ_TOKENS: 33_333_333},
        model=ANY,
        since=since,
    )
    with server.state.database.write() as session:
        store(session, joined(load_price_book(None), changed), START)


def create(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    own = {"expectedHits", "suffixTokens", "outputTokens"}
    response = http.post("/v1beta/cachedContents", json={name: body[name] for name in body.keys() - own})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def hit(http: httpx.Client, cache: dict[str, Any]) -> int:
    """Ask of the cache; gives the tokens that the prompt had beyond it."""
    body = {"contents": [user("What is it?")], "cachedContent": cache["name"]}
    response = http.post(f"/v1beta/models/{MODEL}:generateContent", json=body)
    assert response.status_code == 200, response.text
    usage = response.json()["usageMetadata"]
    return int(usage["promptTokenCount"] - usage["cachedContentTokenCount"])


def billed(server: Server, cache: dict[str, Any]) -> list[dict[str, Any]]:
    """What the ledger holds of the cache, by meter, once all is posted."""
    server.clock.advance(3600)
    now = server.clock.now()
    keep_books(server.state.database, server.clock)
    assert faults(server.state.database, now) == []
    period = Period(START.replace(minute=0, second=0, microsecond=0), now + timedelta(days=3))
    with server.state.database.read() as session:
        made = report(session, Query(period, server.project_id, (Subject.CACHE,)), now)
    assert made.total.provisional_nano_usd == 0
    meters: list[dict[str, Any]] = sums_json(made.groups[cache["name"].removeprefix("cachedContents/"),])[
        "meters"
    ]
    return meters


class TestIsTheLaterBill:
    def suffix_tokens(self, server: Server) -> int:
        """As another project found it out."""
        with server.client(server.add_key(server.add_project("rehearsal"), *Scope)) as other:
            return hit(other, create(other, content()))

    @pytest.mark.parametrize("change_after", [None, 100, 1234])
    @pytest.mark.parametrize(("ttl", "hits"), [("600s", 5), ("1.5s", 1), ("0.5s", 0), ("7300.75s", 9)])
    def test_of_a_cache_that_lives_to_its_end(
        self, server: Server, http: httpx.Client, ttl: str, hits: int, change_after: int | None
    ) -> None:
        if change_after is not None:
            change_prices(server, seconds=change_after)
        body = content(
            ttl=ttl, expectedHits=hits, suffixTokens=self.suffix_tokens(server), outputTokens=OUTPUT_TOKENS
        )
        promised = quoted(server, body)
        server.clock.advance(0.5)  # it is made later than it was quoted, in the same second
        cache = create(http, body)
        start, life = server.clock.now(), promised["seconds"]
        assert life == ceil(float(ttl.removesuffix("s")))
        for number in range(hits):
            gone = (server.clock.now() - start).total_seconds()
            server.clock.advance(number * life / hits - gone)
            assert hit(http, cache) == promised["suffixTokens"]
        server.clock.advance(life)
        assert billed(server, cache) == promised["meters"]

    def test_is_never_less_however_seconds_are_cut(self, server: Server, http: httpx.Client) -> None:
        """A life of 1.5 seconds has one whole second or two, by the instant at which it begins."""
        gaps = set()
        for ttl, late in [("1.5s", 0), ("1.5s", 0.5), ("0.5s", 0.25), ("0.5s", 0.75), ("2s", 0.75)]:
            body = content(ttl=ttl, expectedHits=0)
            promised = quoted(server, body)
            server.clock.advance(late)
            cache = create(http, body)
            with server.state.database.read() as session:
                segment = session.get_one(StorageSegment, cache["name"].removeprefix("cachedContents/"))
            lived = seconds_between(whole_second(segment.started_at), whole_second(segment.ends_at))
            written, kept, *_ = billed(server, cache)
            assert written == promised["meters"][0]
            assert kept["quantity"] == lived * promised["tokenCount"]
            assert kept["amountNanoUsd"] <= promised["meters"][1]["amountNanoUsd"]
            gaps.add(promised["seconds"] - lived)
        assert gaps == {0, 1}

    @pytest.mark.parametrize("ends_by", ["delete", "patch"])
    def test_for_the_seconds_that_it_really_lived(
        self, server: Server, http: httpx.Client, ends_by: str
    ) -> None:
        """Building takes a while, and is not billed; then it ends before its time."""
        change_prices(server, seconds=90)
        server.script = Script(hold_builds=True)
        body = content(ttl="7200s")
        with (
            server.client() as other,
            server.later(
                lambda: other.post(
                    "/v1beta/cachedContents", json={name: body[name] for name in ("model", "contents", "ttl")}
                )
            ) as made,
        ):
            server.wait_for(lambda: bool(server.worker.sent))
            server.clock.advance(12.5)
            server.worker.release.set()
            cache = made.result().json()
        suffix = [hit(http, cache) for _ in range(2)]
        server.clock.advance(100)
        if ends_by == "delete":
            assert http.delete(f"/v1beta/{cache['name']}").status_code == 200
        else:
            assert http.patch(f"/v1beta/{cache['name']}", json={"ttl": "20.5s"}).status_code == 200
        with server.state.database.read() as session:
            segment = session.get_one(StorageSegment, cache["name"].removeprefix("cachedContents/"))
            # Both hits came at the very start, so their prices are those of a life that is over then.
            plan = Plan(server.project_id, MODEL, segment.token_count, segment.started_at, segment.ends_at, 0)
            kept = quote(plan, load_prices(session))
            hits = Plan(
                server.project_id,
                MODEL,
                segment.token_count,
                segment.started_at,
                segment.started_at + timedelta(seconds=1),
                2,
                suffix[0],
                OUTPUT_TOKENS,
            )
            read = quote(hits, load_prices(session))
        expected = {line["meter"]: line for line in quote_json(read)["meters"]}
        expected |= {line["meter"]: line for line in quote_json(kept)["meters"][:2]}
        assert segment.started_at == START + timedelta(seconds=12.5)
        assert {line["meter"]: line for line in billed(server, cache)} == expected


class TestAnswer:
    def test_has_what_a_report_has_and_when_it_pays(self, server: Server) -> None:
        found = quoted(server, content(tokenCount=100, contents=None, suffixTokens=7))
        assert found.pop("meters")[0] == {
            "meter": "cache_write_tokens",
            "unit": "tokens",
            "quantity": 100,
            "amountNanoUsd": 10_000,
            "withoutCacheNanoUsd": 0,
            "entries": 1,
        }
        kept = 100 * 600 * 10**9 // (3600 * 10**6)
        assert found == {
            "project": server.project_id,
            "model": MODEL,
            "tokenCount": 100,
            "start": "2026-05-04T12:00:00.250000Z",
            "end": "2026-05-04T12:10:00.250000Z",
            "seconds": 600,
            "suffixTokens": 7,
            "outputTokens": 0,
            "amountNanoUsd": 10_000 + kept + 5 * 1_700,
            "provisionalNanoUsd": 0,
            "withoutCacheNanoUsd": 5 * 10_700,
            "savedNanoUsd": 5 * 9_000 - 10_000 - kept,
            "hits": 5,
            "hitRate": round(100 / 107, 4),
            "breakEvenHits": 3,
            "breakEvenHitsPerHour": 11.1111,
        }

    @pytest.mark.parametrize(
        "fields",
        [
            {"contents": [user(words(150)), {"role": "model", "parts": [{"text": "Yes."}]}]},
            {"systemInstruction": user("Be brief."), "displayName": "Mine"},
            {"contents": None, "system_instruction": user(words(80))},
            {"ttl": None},
            {"ttl": None, "expireTime": "2026-05-04T13:30:00Z"},
            {"model": f"models/{ALIAS}"},
        ],
    )
    def test_counts_and_dates_as_a_create_does(
        self, server: Server, http: httpx.Client, fields: dict[str, Any]
    ) -> None:
        body = content(**fields)
        found, cache = quoted(server, body), create(http, body)
        assert found["tokenCount"] == cache["usageMetadata"]["totalTokenCount"]
        assert (found["model"], found["end"]) == (MODEL, cache["expireTime"])

    def test_writes_nothing(self, server: Server) -> None:
        quoted(server, content())
        with server.state.database.read() as session:
            for table in (Cache, Usage, StorageSegment, LedgerEntry):
                assert session.query(table).count() == 0
        assert server.worker.sent == []

    def test_is_at_the_prices_of_the_project(self, server: Server) -> None:
        own = book(
            {Meter.CACHE_WRITE_TOKENS: 0},
            model=ANY,
            since=START.replace(microsecond=0),
            project_id=server.project_id,
        )
        with server.state.database.write() as session:
            store(session, joined(load_price_book(None), own), START - timedelta(seconds=1))
        other = server.add_key(server.add_project("other"), Scope.BILLING)
        assert quoted(server, content())["meters"][0]["amountNanoUsd"] == 0
        assert quoted(server, content(), other)["meters"][0]["amountNanoUsd"] > 0


class TestWhoMayAsk:
    def test_no_key_is_refused(self, server: Server) -> None:
        refusal(httpx.post(server.url + ROUTE, json=content()), 401)

    @pytest.mark.parametrize("scopes", [[Scope.CACHES], [Scope.BILLING], [Scope.CACHES, Scope.BILLING]])
    def test_a_key_for_caches_or_bills(self, server: Server, scopes: Sequence[Scope]) -> None:
        assert (
            quoted(server, content(), server.add_key(server.project_id, *scopes))["project"]
            == server.project_id
        )

    def test_no_other_key_of_a_project(self, server: Server) -> None:
        key = server.add_key(server.project_id, Scope.GENERATE, Scope.ADMIN)
        assert "billing" in refusal(ask(server, content(), key), 403)["message"]

    def test_an_operator_names_the_project(self, server: Server) -> None:
        key = server.add_key(None)
        other = server.add_project("other")
        assert quoted(server, content(), key, project=server.project_id)["project"] == server.project_id
        assert quoted(server, content(), key, project="other")["project"] == other
        assert field(refusal(ask(server, content(), key))) == "project"
        refusal(ask(server, content(), key, project="absent"), 404)

    def test_another_project_is_as_absent_as_none(self, server: Server) -> None:
        other = server.add_project("other")
        foreign, absent = (
            refusal(ask(server, content(), project=name), 404) for name in (other, "proj_absent")
        )
        assert foreign["message"].replace(other, "proj_absent") == absent["message"]
        assert quoted(server, content(), project=server.project_id)["project"] == server.project_id


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "status", "reason", "named"),
        [
            ({"contents": [user("Short.")]}, 400, "CACHE_TOO_SMALL", "contents"),
            ({"contents": [user(words(900))]}, 400, "CACHE_TOO_LARGE", "contents"),
            ({"contents": [user("word " * 50_000)]}, 413, "BODY_TOO_LARGE", None),
            ({"contents": None, "tokenCount": 63}, 400, "CACHE_TOO_SMALL", "token_count"),
            ({"contents": None, "tokenCount": 400}, 400, "CACHE_TOO_LARGE", "token_count"),
            ({"contents": None, "tokenCount": -1}, 400, "INVALID_ARGUMENT", "token_count"),
            ({"tokenCount": 100}, 400, "INVALID_ARGUMENT", "token_count"),
            ({"contents": None}, 400, "INVALID_ARGUMENT", "contents"),
            ({"model": None}, 400, "INVALID_ARGUMENT", "model"),
            ({"model": "absent"}, 404, "MODEL_NOT_FOUND", "model"),
            ({"model": "absent", "contents": None, "tokenCount": 100}, 404, "MODEL_NOT_FOUND", "model"),
            ({"tools": [{"functionDeclarations": []}]}, 400, "NOT_SUPPORTED", "tools"),
            ({"ttl": "5m"}, 400, "INVALID_ARGUMENT", "ttl"),
            ({"ttl": "2592001s"}, 400, "INVALID_ARGUMENT", "ttl"),
            ({"expireTime": "2026-06-01T00:00:00Z"}, 400, "INVALID_ARGUMENT", "ttl"),
            ({"ttl": None, "expireTime": "2026-05-04T12:00:00Z"}, 400, "INVALID_ARGUMENT", "expire_time"),
            ({"expectedHits": None}, 400, "INVALID_ARGUMENT", "expected_hits"),
            ({"expectedHits": -1}, 400, "INVALID_ARGUMENT", "expected_hits"),
            ({"expectedHits": 1.5}, 400, "INVALID_ARGUMENT", "expected_hits"),
            ({"expectedHits": "5"}, 400, "INVALID_ARGUMENT", "expected_hits"),
            ({"suffixTokens": -1}, 400, "INVALID_ARGUMENT", "suffix_tokens"),
            ({"outputTokens": 2**31}, 400, "INVALID_ARGUMENT", "output_tokens"),
            ({"hits": 5}, 400, "INVALID_ARGUMENT", "hits"),
            # The model takes prompts of 399 tokens in a context of 400.
            (
                {"contents": None, "tokenCount": 100, "suffixTokens": 300},
                400,
                "INPUT_TOO_LARGE",
                "suffix_tokens",
            ),
            ({"suffixTokens": 5000}, 400, "INPUT_TOO_LARGE", "suffix_tokens"),
            ({"outputTokens": 5000}, 400, "INVALID_ARGUMENT", "output_tokens"),
            (
                {"contents": None, "tokenCount": 100, "suffixTokens": 298, "outputTokens": 17},
                *(400, "INVALID_ARGUMENT", "output_tokens"),
            ),
        ],
    )
    def test_name_the_field(
        self, server: Server, fields: dict[str, Any], status: int, reason: str, named: str | None
    ) -> None:
        error = refusal(ask(server, content(**fields)), status)
        assert error["details"][0]["reason"] == reason
        if named is not None:
            assert field(error) == named

    def test_the_largest_hit_is_quoted(self, server: Server) -> None:
        """What is left of the context is the answer's, in each of up to eight candidates."""
        largest = {"contents": None, "tokenCount": 100, "suffixTokens": 298, "outputTokens": 2 * 8}
        assert quoted(server, content(**largest))["outputTokens"] == 16

    def test_say_what_a_create_says(self, server: Server, http: httpx.Client) -> None:
        for fields in (
            {"contents": [user("Short.")]},
            {"contents": [user(words(900))]},
            {"contents": [user("a"), {"role": "x"}]},
        ):
            own = refusal(ask(server, content(**fields)))
            body = {name: value for name, value in content(**fields).items() if name != "expectedHits"}
            theirs = refusal(http.post("/v1beta/cachedContents", json=body))
            assert own["message"].replace("contents[", "cached_content.contents[") == theirs["message"]

    def test_a_model_is_not_found_on_this_route(self, server: Server) -> None:
        assert "headstart/v1" in refusal(ask(server, content(model="absent")), 404)["message"]

    def test_a_parameter_that_is_unknown(self, server: Server) -> None:
        assert field(refusal(ask(server, content(), projekt="x"))) == "projekt"
