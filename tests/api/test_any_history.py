"""Whatever a project does with its caches, in whatever order and at whatever time: what it is told, shown and billed."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from hypothesis import settings as fuzzing, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from billing.bookkeeping import keep_books
from billing.verify import verify
from caching.sweeping import sweep
from core.clock import format_instant
from core.settings import Settings
from models.api_key import Scope
from models.session import Database
from prompting.served_model import ServedModel
from tests.api.harness import MODEL, Server, open_server, user, words

ROUTE = "/v1/cachedContents"
PERIOD = {"start": "2024-01-01T00:00:00Z", "end": "2040-01-01T00:00:00Z"}
TOMBSTONE, KEY_KEPT = timedelta(days=30), timedelta(hours=24)
OUTPUT_TOKENS = 3  # of the worker's script

ttls = st.sampled_from([0.5, 1, 59.75, 60, 3600, 86_400])
waits = st.sampled_from([0.001, 0.75, 1, 59.75, 3600, 86_400, 30 * 86_400])
choices = st.integers(min_value=0, max_value=99)


@dataclass
class Life:
    """A cache as a plain model has it; expire_at is moved by an extension, deleted_at set by a deletion."""

    name: str
    tokens: int
    created_at: datetime
    expire_at: datetime
    deleted_at: datetime | None = None
    input_tokens: list[int] = field(default_factory=list)  # of each answer

    @property
    def ends_at(self) -> datetime:
        return self.deleted_at or self.expire_at

    def refusal(self, now: datetime) -> str | None:
        """Why it cannot be used at an instant."""
        if now < self.ends_at and self.deleted_at is None:
            return None
        if now >= self.ends_at + TOMBSTONE:
            return "CACHE_NOT_FOUND"
        return "CACHE_DELETED" if self.deleted_at is not None else "CACHE_EXPIRED"

    def token_seconds(self, now: datetime) -> int:
        return self.tokens * (int(min(self.ends_at, now).timestamp()) - int(self.created_at.timestamp()))


@dataclass(frozen=True)
class Made:
    """What came with an idempotency key."""

    ttl: float
    at: datetime
    life: Life


class History(RuleBasedStateMachine):
    """server and stranger: the same for all histories; each has a project of its own."""

    server: Server
    stranger: httpx.Client

    def __init__(self) -> None:
        super().__init__()
        self.server.begin()
        self.http = self.server.client()
        self.lives: list[Life] = []
        self.made: dict[str, Made] = {}

    def teardown(self) -> None:
        self.bill()
        self._prove()
        self.http.close()

    @property
    def now(self) -> datetime:
        return self.server.clock.now()

    @rule(ttl=ttls, size=st.sampled_from([80, 150]))
    def create(self, ttl: float, size: int) -> None:
        self._create(ttl, size)

    @rule(ttl=st.sampled_from([1, 3600]), key=st.sampled_from("ab"))
    def create_by_key(self, ttl: float, key: str) -> None:
        made = self.made.get(key)
        if made is not None and made.at > self.now - KEY_KEPT:
            answer = self._post_create(ttl, 80, {"Idempotency-Key": key})
            if made.ttl != ttl:
                check_refused(answer, 400, "IDEMPOTENCY_MISMATCH")
                return
            assert answer.status_code == 200, answer.text
            assert answer.json()["name"] == made.life.name
        elif (life := self._create(ttl, 80, {"Idempotency-Key": key})) is not None:
            self.made[key] = Made(ttl, self.now, life)

    @rule(seconds=waits)
    def wait(self, seconds: float) -> None:
        self.server.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        with self.server.state.database.write() as session:
            sweep(session, self.server.clock, 1000)

    @precondition(lambda self: self.lives)
    @rule(choice=choices)
    def get(self, choice: int) -> None:
        life = self._any(choice)
        answer = self.http.get(f"/v1/{life.name}")
        if self._is_there(life, answer):
            shown = answer.json()
            assert shown["expireTime"] == format_instant(life.expire_at)
            assert shown["createTime"] == format_instant(life.created_at)
            assert (shown["state"], shown["hitCount"]) == ("ACTIVE", len(life.input_tokens))
        check_refused(self.stranger.get(f"/v1/{life.name}"), 403, "CACHE_NOT_FOUND")

    @precondition(lambda self: self.lives)
    @rule(choice=choices, ttl=ttls)
    def extend(self, choice: int, ttl: float) -> None:
        life = self._any(choice)
        if self._is_there(life, self.http.patch(f"/v1/{life.name}", json={"ttl": f"{ttl}s"})):
            life.expire_at = self.now + timedelta(seconds=ttl)

    @precondition(lambda self: self.lives)
    @rule(choice=choices)
    def delete(self, choice: int) -> None:
        life = self._any(choice)
        if self._is_there(life, self.http.delete(f"/v1/{life.name}")):
            life.deleted_at = self.now

    @precondition(lambda self: self.lives)
    @rule(choice=choices)
    def use(self, choice: int) -> None:
        life = self._any(choice)
        body = {"contents": [user("What now?")], "cachedContent": life.name}
        answer = self.http.post(f"/v1/models/{MODEL}:generateContent", json=body)
        if self._is_there(life, answer):
            usage = answer.json()["usageMetadata"]
            assert usage["cachedContentTokenCount"] == life.tokens
            assert usage["candidatesTokenCount"] == OUTPUT_TOKENS
            life.input_tokens.append(usage["promptTokenCount"] - life.tokens)

    @rule(size=st.integers(min_value=1, max_value=3))
    def list_all(self, size: int) -> None:
        """All that is live, newest first."""
        live = [life for life in self.lives if life.refusal(self.now) is None]
        newest_first = sorted(live, key=lambda life: (life.created_at, life.name), reverse=True)
        assert self._listed(size) == [(each.name, format_instant(each.expire_at)) for each in newest_first]

    @rule()
    def bill(self) -> None:
        answer = self.http.get("/headstart/v1/billing/report", params=PERIOD)
        assert answer.status_code == 200, answer.text
        now = self.now
        assert {line["meter"]: line["quantity"] for line in answer.json()["meters"]} == {
            "cache_write_tokens": sum(life.tokens for life in self.lives),
            "cache_storage_token_seconds": sum(life.token_seconds(now) for life in self.lives),
            "cache_read_tokens": sum(life.tokens * len(life.input_tokens) for life in self.lives),
            "implicit_cache_read_tokens": 0,
            "input_tokens": sum(sum(life.input_tokens) for life in self.lives),
            "output_tokens": sum(OUTPUT_TOKENS * len(life.input_tokens) for life in self.lives),
        }

    def _prove(self) -> None:
        """Bring the books up to date, and compute every charge a second time."""
        keep_books(self.server.state.database, self.server.clock)
        with self.server.state.database.read() as session:
            assert list(verify(session, self.now)) == []

    def _post_create(self, ttl: float, size: int, headers: dict[str, str] | None = None) -> httpx.Response:
        body = {"model": MODEL, "contents": [user(words(size))], "ttl": f"{ttl}s"}
        return self.http.post(ROUTE, json=body, headers=headers or {})

    def _create(self, ttl: float, size: int, headers: dict[str, str] | None = None) -> Life | None:
        answer = self._post_create(ttl, size, headers)
        live_count = sum(life.refusal(self.now) is None for life in self.lives)
        if live_count >= self.server.state.settings.max_caches_per_project:
            check_refused(answer, 429, "CACHE_QUOTA")
            return None
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        expire_at = self.now + timedelta(seconds=ttl)
        assert shown["expireTime"] == format_instant(expire_at)
        life = Life(shown["name"], shown["usageMetadata"]["totalTokenCount"], self.now, expire_at)
        self.lives.append(life)
        return life

    def _any(self, choice: int) -> Life:
        return self.lives[choice % len(self.lives)]

    def _is_there(self, life: Life, answer: httpx.Response) -> bool:
        refusal = life.refusal(self.now)
        if refusal is not None:
            check_refused(answer, 403, refusal)
            return False
        assert answer.status_code == 200, answer.text
        return True

    def _listed(self, size: int) -> list[tuple[str, str]]:
        listed: list[tuple[str, str]] = []
        query: dict[str, str | int] = {"pageSize": size}
        while True:
            page = self.http.get(ROUTE, params=query).json()
            listed += [(each["name"], each["expireTime"]) for each in page.get("cachedContents", [])]
            if "nextPageToken" not in page:
                return listed
            query["pageToken"] = page["nextPageToken"]


def check_refused(answer: httpx.Response, status: int, reason: str) -> None:
    assert (answer.status_code, answer.json()["error"]["details"][0]["reason"]) == (status, reason)


def test_any_history(
    database: Database, tmp_path: Path, settings: Settings, served_model: ServedModel
) -> None:
    with (
        open_server(tmp_path, database, settings, served_model) as server,
        server.client(server.add_key(server.add_project("strangers"), *Scope)) as stranger,
    ):
        history: type[History] = type("HistoryHere", (History,), {"server": server, "stranger": stranger})
        run_state_machine_as_test(
            history, settings=fuzzing(max_examples=8, stateful_step_count=25, deadline=None)
        )
