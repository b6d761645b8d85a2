"""One of many clients that create, extend, use, list, delete and let expire at once, and check all that they are told.

Server and clients share a clock, so a client that notes when it asked and when it was answered knows what it may be told.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx

from core.clock import format_instant
from tests.e2e.customer import Answer, Customer, read_answer, reason_of

_TOKENS = 4
# What may refuse a request of each kind, beside a cache that is gone.
_BUSY = {(503, "UNAVAILABLE")}
_NO_ROOM = {(429, "CACHE_QUOTA"), (429, "ARENA_FULL"), (504, "DEADLINE_EXCEEDED")}
_GONE = {(403, "CACHE_DELETED"), (403, "CACHE_EXPIRED")}
QUESTION = "What do you say?"


class Span(NamedTuple):
    """Between asking and being answered: what was asked for happened then."""

    begin: datetime
    end: datetime

    def has(self, instant: datetime) -> bool:
        return self.begin <= instant <= self.end


@dataclass
class Life:
    """A cache as its owner knows it. deleted: while its deletion was asked for."""

    text: str
    tokens: int
    created: Span
    expire_at: datetime
    deleted: Span | None = None


@dataclass
class Client:
    """texts: what to cache, each with its right answer. foreign: names of another project's caches."""

    customer: Customer
    texts: dict[str, str]
    randomness: random.Random
    foreign: dict[str, Life]
    lives: dict[str, Life] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)

    def run(self, is_over: Callable[[], bool]) -> None:
        steps = (self.create, self.use, self.use, self.get, self.extend, self.delete, self.list, self.peep)
        while not is_over():
            step: Callable[[], None] = self.randomness.choice(steps)
            step()

    def create(self) -> None:
        text = self.randomness.choice(list(self.texts))
        body = self.customer.cache_body(text, f"{self.randomness.randint(10, 30) / 10}s")
        answer, span = self._ask(lambda: self.customer.http.post("/v1beta/cachedContents", json=body))
        if self._is_refused(answer, _NO_ROOM | _BUSY):
            return
        cache = answer.json()
        assert cache["name"] not in self.lives
        self.lives[cache["name"]] = Life(
            text, cache["usageMetadata"]["totalTokenCount"], span, _instant(cache["expireTime"])
        )

    def use(self) -> None:
        if name := self._any():
            body = self.customer.body(QUESTION, name, tokens=_TOKENS)
            answer, span = self._ask(
                lambda: self.customer.http.post(self.customer.path("generateContent"), json=body)
            )
            if self._is_there(name, answer, span, _BUSY):
                answered = read_answer([answer.json()])
                assert answered.text == self.texts[self.lives[name].text]
                cached, implicit = (
                    answered.usage[f"{kind}TokenCount"] for kind in ("cachedContent", "implicitCached")
                )
                assert cached - implicit == self.lives[name].tokens
                self.answers.append(answered)

    def get(self) -> None:
        if name := self._any():
            answer, span = self._ask(lambda: self.customer.get(name))
            if self._is_there(name, answer, span):
                assert _instant(answer.json()["expireTime"]) == self.lives[name].expire_at

    def extend(self) -> None:
        if name := self._any():
            ttl = timedelta(seconds=self.randomness.randint(5, 20) / 10)
            body = {"ttl": f"{ttl.total_seconds()}s"}
            answer, span = self._ask(lambda: self.customer.http.patch(f"/v1beta/{name}", json=body))
            if self._is_there(name, answer, span):
                self.lives[name].expire_at = _instant(answer.json()["expireTime"])
                assert span.has(self.lives[name].expire_at - ttl)

    def delete(self) -> None:
        if name := self._any():
            answer, span = self._ask(lambda: self.customer.http.delete(f"/v1beta/{name}"))
            if self._is_there(name, answer, span):
                assert answer.json() == {}
                self.lives[name].deleted = span

    def list(self) -> None:
        """What others of the project have is listed too, and is theirs to check."""
        answer, span = self._ask(
            lambda: self.customer.http.get("/v1beta/cachedContents", params={"pageSize": 1000})
        )
        assert answer.status_code == 200, answer.text
        listed = {each["name"]: each["expireTime"] for each in answer.json().get("cachedContents", [])}
        for name, life in self.lives.items():
            if life.deleted or life.expire_at <= span.begin:
                assert name not in listed
            elif life.expire_at > span.end:
                assert listed[name] == format_instant(life.expire_at)
        assert not listed.keys() & self.foreign.keys()

    def peep(self) -> None:
        if self.foreign:
            name = self.randomness.choice(list(self.foreign))
            answer, _ = self._ask(lambda: self.customer.get(name))
            assert (answer.status_code, reason_of(answer)) == (403, "CACHE_NOT_FOUND")

    def _any(self) -> str | None:
        """One of the last few: what is long gone stays gone."""
        return self.randomness.choice(list(self.lives)[-3:]) if self.lives else None

    def _ask(self, request: Callable[[], httpx.Response]) -> tuple[httpx.Response, Span]:
        begin = datetime.now(UTC)
        answer = request()
        return answer, Span(begin, datetime.now(UTC))

    def _is_there(
        self, name: str, answer: httpx.Response, span: Span, busy: set[tuple[int, str]] | None = None
    ) -> bool:
        """Whether a request for a cache succeeded; that it may, or may not, have."""
        life = self.lives[name]
        if self._is_refused(answer, _GONE | (busy or set())):
            if answer.status_code == 403 and life.deleted:
                assert reason_of(answer) == "CACHE_DELETED"
            elif answer.status_code == 403:
                assert reason_of(answer) == "CACHE_EXPIRED"
                assert life.expire_at <= span.end
            return False
        assert not life.deleted
        assert span.begin < life.expire_at
        return True

    def _is_refused(self, answer: httpx.Response, allowed: set[tuple[int, str]]) -> bool:
        if answer.status_code == 200:
            return False
        refusal = answer.status_code, reason_of(answer)
        assert refusal in allowed, answer.text
        assert refusal[0] != 503 or int(answer.headers["retry-after"]) >= 1
        self.refused[refusal] += 1
        return True


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)
