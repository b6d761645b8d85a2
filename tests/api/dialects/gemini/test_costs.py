"""Each answer tells its cost, to the nano what the ledger holds of it; a cache's, what it will hold."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.bookkeeping import keep_books
from billing.meters import CREATE_METERS, Meter
from billing.periods import Period
from billing.price import ANY
from billing.price_book import load_price_book
from billing.prices import store
from billing.report import Query, Subject, report
from core.errors import Internal
from core.messages import FinishReason
from core.settings import Settings
from models.ledger_entry import LedgerEntry, list_entries
from models.session import Database
from prompting.served_model import ServedModel
from tests.api.harness import MODEL, Server, open_server, user, words
from tests.billing.rows import book, joined
from tests.fakes.clock import START
from tests.fakes.worker import Script

Create = Callable[..., dict[str, Any]]
METHODS = ("generateContent", "streamGenerateContent", "streamGenerateContent?alt=sse")
KEEP = Meter.CACHE_STORAGE_TOKEN_SECONDS


@pytest.fixture
def server(
    tmp_path: Path, database: Database, settings: Settings, served_model: ServedModel
) -> Iterator[Server]:
    """A server of its own for each test, whose prices of keeping change twice within the first two hours."""
    with open_server(tmp_path, database, settings, served_model) as server:
        server.begin()
        with database.write() as session:
            dearer = book(
                {KEEP: 7_000_000_001}, model=ANY, since=START.replace(microsecond=0) + timedelta(seconds=1000)
            )
            free = book({KEEP: 0}, model=ANY, since=START.replace(microsecond=0) + timedelta(seconds=5000))
            store(session, joined(load_price_book(None), dearer, free), START)
        yield server


def chunks(http: httpx.Client, method: str = METHODS[0], **fields: Any) -> list[dict[str, Any]]:
    """The pieces of an answer; a unary one has one."""
    response = http.post(f"/v1/models/{MODEL}:{method}", json={"contents": [user("Hi")]} | fields)
    assert response.status_code == 200, response.text
    if method.endswith("sse"):
        return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]
    found = response.json()
    return found if isinstance(found, list) else [found]


def entries(server: Server) -> Sequence[LedgerEntry]:
    with server.state.database.read() as session:
        return list_entries(session, server.project_id, 0, 10_000)


def posted(server: Server, request_id: str) -> dict[str, Any]:
    """The cost of a request as the ledger has it."""
    found = [each for each in entries(server) if each.dedupe_key.startswith(f"{request_id}:")]
    amounts = {str(each.meter): each.amount_nano_usd for each in found}
    return {
        "amountNanoUsd": sum(amounts.values()),
        "nanoUsdByMeter": amounts,
        "savedNanoUsd": sum(each.without_cache_nano_usd - each.amount_nano_usd for each in found),
    }


class TestAnswers:
    @pytest.mark.parametrize("implicit", [0, 5])
    @pytest.mark.parametrize("is_cached", [True, False])
    @pytest.mark.parametrize("method", METHODS)
    def test_tell_with_their_end_what_is_posted(
        self,
        server: Server,
        http: httpx.Client,
        create_cache: Create,
        method: str,
        is_cached: bool,
        implicit: int,
    ) -> None:
        fields = {"cachedContent": create_cache()["name"]} if is_cached else {}
        server.script = Script(implicit_cache_tokens=implicit)
        *before, last = chunks(http, method, **fields)
        assert all("cost" not in chunk for chunk in before)
        assert last["cost"] == posted(server, last["responseId"])
        meters = {"input_tokens", "output_tokens"}
        meters |= {"cache_read_tokens"} if is_cached else set()
        meters |= {"implicit_cache_read_tokens"} if implicit else set()
        assert last["cost"]["nanoUsdByMeter"].keys() == meters
        assert (last["cost"]["savedNanoUsd"] > 0) == (is_cached or implicit > 0)

    @pytest.mark.parametrize("method", METHODS)
    def test_with_several_candidates_tell_it_once(
        self, server: Server, http: httpx.Client, method: str
    ) -> None:
        pieces = (((1,), "One", 0), ((2, 3), "Two", 1))
        server.script = Script(pieces=pieces)  # type: ignore[arg-type]
        *before, last = chunks(http, method, generationConfig={"candidateCount": 2})
        assert all("cost" not in chunk for chunk in before)
        assert last["cost"] == posted(server, last["responseId"])

    def test_that_were_cut_off_tell_what_they_came_to(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(reason=FinishReason.CANCELLED)
        (answer,) = chunks(http)
        assert answer["candidates"][0]["finishReason"] == "OTHER"
        assert answer["cost"] == posted(server, answer["responseId"])
        assert answer["cost"]["nanoUsdByMeter"]["output_tokens"] == 3 * 400

    def test_without_a_word_cost_their_prompt(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=())
        (answer,) = chunks(http)
        assert answer["cost"] == posted(server, answer["responseId"])
        assert answer["cost"]["nanoUsdByMeter"].keys() == {"input_tokens"}

    def test_whoever_hangs_up_owes_what_was_produced_and_is_told_nothing(
        self, server: Server, http: httpx.Client
    ) -> None:
        server.script = Script(hold_before=1)
        body = {"contents": [user("Hi")]}
        with http.stream("POST", f"/v1/models/{MODEL}:{METHODS[2]}", json=body) as response:
            first = json.loads(next(response.iter_lines()).removeprefix("data: "))
        server.wait_for(lambda: bool(posted(server, first["responseId"])["amountNanoUsd"]))
        assert "cost" not in first
        assert posted(server, first["responseId"])["nanoUsdByMeter"]["output_tokens"] == 400

    def test_an_error_has_no_cost(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=(), error=Internal("It broke."))
        response = http.post(f"/v1/models/{MODEL}:generateContent", json={"contents": [user("Hi")]})
        assert response.status_code == 500
        assert "cost" not in response.text
        assert entries(server) == []


class TestCaches:
    def shown(self, http: httpx.Client, name: str) -> dict[str, Any]:
        """What get, list and a patch that leaves the expiry as it is tell alike."""
        body: dict[str, Any] = http.get(f"/v1/{name}").json()
        (listed,) = [
            each for each in http.get("/v1/cachedContents").json()["cachedContents"] if each["name"] == name
        ]
        patched = http.patch(f"/v1/{name}", json={"expireTime": body["expireTime"]}).json()
        cost: dict[str, Any] = body["cost"]
        assert cost == listed["cost"] == patched["cost"]
        assert cost["amountNanoUsd"] == sum(cost["nanoUsdByMeter"].values())
        assert cost.keys() == {"amountNanoUsd", "nanoUsdByMeter"}
        return cost

    def owed(self, server: Server, cache_id: str) -> dict[str, int]:
        """What is posted for writing and keeping, and what a report adds that is not posted yet."""
        amounts = dict.fromkeys((str(meter) for meter in CREATE_METERS), 0)
        for entry in entries(server):
            if entry.cache_id == cache_id and entry.meter in amounts:
                amounts[entry.meter] += entry.amount_nano_usd
        now = server.clock.now()
        period = Period(START.replace(minute=0, second=0, microsecond=0), now + timedelta(hours=1))
        with server.state.database.read() as session:
            groups = report(session, Query(period, server.project_id, (Subject.CACHE,)), now).groups
        amounts[KEEP] += groups[cache_id,].provisional_nano_usd
        return amounts

    def test_tell_what_is_owed_at_any_instant_over_changes_of_the_price(
        self, server: Server, http: httpx.Client, create_cache: Create
    ) -> None:
        made = create_cache(ttl="7000.5s")
        name = made["name"]
        cache_id = name.removeprefix("cachedContents/")
        assert made["cost"] == self.shown(http, name)
        chunks(http, cachedContent=name)
        told = []
        for seconds in (0.5, 0.25, 998.75, 1, 1800, 3000.5, 199, 2.5, 900):
            server.clock.advance(seconds)
            told.append(self.shown(http, name)["nanoUsdByMeter"])
            assert told[-1] == self.owed(server, cache_id)
            keep_books(server.state.database, server.clock)
            assert self.shown(http, name)["nanoUsdByMeter"] == self.owed(server, cache_id) == told[-1]
        kept = [each[KEEP] for each in told]
        assert kept == sorted(kept)
        assert kept[0] == 0 < kept[2] < kept[-2] == kept[-1]  # free in the end

    def test_that_was_made_again_by_its_key_tells_what_it_came_to(
        self, server: Server, http: httpx.Client
    ) -> None:
        body = {"model": MODEL, "contents": [user(words(100))], "ttl": "60s"}
        named = {"Idempotency-Key": "one"}
        name = http.post("/v1/cachedContents", json=body, headers=named).json()["name"]
        server.clock.advance(20)
        assert http.delete(f"/v1/{name}").status_code == 200
        server.clock.advance(3600)
        again = http.post("/v1/cachedContents", json=body, headers=named).json()
        tokens = again["usageMetadata"]["totalTokenCount"]
        assert again["cost"]["nanoUsdByMeter"] == {
            "cache_write_tokens": tokens * 100,
            "cache_storage_token_seconds": tokens * 20 * 10**9 // (3600 * 10**6),
        }
        assert again["cost"]["nanoUsdByMeter"] == self.owed(server, name.removeprefix("cachedContents/"))
