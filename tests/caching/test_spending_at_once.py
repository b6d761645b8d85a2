"""Sixty-four of everything at once, by real threads on a real database: a hard limit is never passed, by not one nano."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pytest

from billing.credit import grant, set_prepaid
from billing.limits import remove_limit
from core.errors import AppError, CreditExhausted, SpendLimit, Unavailable
from tests.caching.at_once import at_once
from tests.caching.spending import REQUEST, WRITE, Spending, hours
from tests.databases import Kind

T = TypeVar("T")
CROWD = 64
TAKEN = 10


def kinds(outcomes: list[object]) -> Counter[str]:
    return Counter(type(each).__name__ for each in outcomes)


def all_acquire(spending: Spending) -> list[int]:
    """Everybody asks at once; gives the numbers of those who were let through."""
    outcomes = at_once(*[partial(spending.acquire, None, f"r{n}") for n in range(CROWD)])
    done = [n for n, outcome in enumerate(outcomes) if outcome is None]
    refused = [each for each in outcomes if isinstance(each, SpendLimit | CreditExhausted)]
    assert len(done) + len(refused) == CROWD, outcomes
    return done


def all_finish(spending: Spending, numbers: list[int]) -> None:
    finish = partial(spending.finish, output=10)
    assert at_once(*[partial(finish, f"r{n}") for n in numbers]) == [True] * len(numbers)


@pytest.mark.parametrize("short_by", [0, 1])
def test_as_many_requests_are_let_through_as_there_is_room_for(spending: Spending, short_by: int) -> None:
    spending.limit(TAKEN * REQUEST - short_by)
    spending.limit(CROWD * REQUEST, key_id=spending.customer.key_id)
    taken = TAKEN - short_by
    done = all_acquire(spending)
    assert len(done) == spending.count("usage") == spending.count("holds") == taken
    assert spending.used() == spending.used(spending.customer.key_id) == (0, taken * REQUEST)
    all_finish(spending, done)
    assert spending.used() == (taken * REQUEST, 0)
    assert spending.faults() == []


def test_as_many_caches_are_made_as_there_is_room_for(spending: Spending) -> None:
    spending.limit(7 * (WRITE + hours(1)) + WRITE)
    outcomes = at_once(*[partial(spending.active, ttl_seconds=3600)] * CROWD)
    assert kinds(outcomes) == {"Cache": 7, "SpendLimit": CROWD - 7}
    assert spending.used() == (7 * WRITE, 7 * hours(1))
    assert spending.faults() == []


def test_a_limit_that_is_set_meanwhile_counts_all_that_runs(spending: Spending) -> None:
    """Whether a request comes before or after it, the limit knows of it."""
    steps: list[Callable[[], object]] = []
    for n in range(CROWD):
        steps.append(partial(spending.acquire, None, f"r{n}"))
        if n % 16 == 8:
            steps += [partial(spending.limit, 10**12), partial(spending.active, ttl_seconds=60)]
    assert kinds(at_once(*steps)) == {"NoneType": CROWD, "LimitStatus": 4, "Cache": 4}
    assert spending.used() == (4 * WRITE, CROWD * REQUEST + 4 * hours(1 / 60))
    assert spending.faults() == []


def test_endings_meet_limits_that_come_and_go(spending: Spending) -> None:
    caches = [spending.active(ttl_seconds=600) for _ in range(8)]
    for n in range(32):
        spending.acquire(None, f"r{n}")

    def come_and_go() -> None:
        for _ in range(3):
            spending.limit(10**12)
            with spending.database.write() as session:
                remove_limit(session, spending.customer.project_id, None)

    steps: list[Callable[[], object]] = [come_and_go]
    steps += [partial(spending.finish, f"r{n}") for n in range(16)]
    steps += [partial(spending.void, f"r{n}") for n in range(16, 24)]
    steps += [partial(spending.delete, cache) for cache in caches[:4]]
    steps += [partial(spending.extend, cache, ttl_seconds=60) for cache in caches[4:6]]
    outcomes = at_once(*steps)
    assert [each for each in outcomes if isinstance(each, AppError)] == []
    assert spending.count("holds") == 0
    assert spending.faults() == []
    spending.limit(10**12)
    assert len(spending.holds()) == 8 + 4
    assert spending.faults() == []


def test_credit_is_never_used_twice(spending: Spending) -> None:
    project_id = spending.customer.project_id
    with spending.database.write() as session:
        set_prepaid(session, project_id, is_prepaid=True)

    def give() -> None:
        with spending.database.write() as session:
            grant(session, project_id, TAKEN * REQUEST + 5, "payment 1", spending.clock.now())

    assert at_once(*[give] * 16) == [None] * 16
    done = all_acquire(spending)
    assert len(done) == TAKEN
    all_finish(spending, done)
    used = sum(each.amount_nano_usd for each in spending.entries() if each.kind == "CREDIT_USE")
    assert used == TAKEN * REQUEST
    with pytest.raises(CreditExhausted):
        spending.acquire(None, "more")
    assert spending.faults() == []


@dataclass
class Somebody:
    """Asks for whatever comes to mind, and is refused at times."""

    spending: Spending
    kind: Kind
    number: int
    refused_count: int = 0

    def live(self) -> None:
        chance = random.Random(self.number)
        for turn in range(3):
            try:
                if chance.random() < 0.2:
                    self.keep_a_cache(chance)
                else:
                    self.ask(f"{self.number}.{turn}", chance)
            except SpendLimit:
                self.refused_count += 1

    def keep_a_cache(self, chance: random.Random) -> None:
        cache = self.sturdy(partial(self.spending.create, ttl_seconds=chance.randrange(1, 3600)))
        if chance.random() < 0.3:
            assert self.sturdy(partial(self.spending.fail, cache))
            return
        assert self.sturdy(partial(self.spending.activate, cache))
        if chance.random() < 0.5:
            self.sturdy(partial(self.spending.delete, cache))

    def ask(self, name: str, chance: random.Random) -> None:
        self.sturdy(partial(self.spending.acquire, None, name))
        if chance.random() < 0.2:
            self.sturdy(self.spending.keep_books)
        if chance.random() < 0.7:
            assert self.sturdy(partial(self.spending.finish, name, chance.randrange(11)))
        else:
            assert self.sturdy(partial(self.spending.void, name))

    def sturdy(self, step: Callable[[], T]) -> T:
        """SQLite lets its writers wait in no order; who waits too long has done nothing, and comes again."""
        while True:
            try:
                return step()
            except Unavailable:
                assert self.kind is Kind.SQLITE, "two units wait for each other"


def test_whatever_a_crowd_does_the_limit_holds_and_everything_resolves(
    spending: Spending, kind: Kind
) -> None:
    """Requests, caches, failures and posting, at random; somebody watches all the while."""
    hard = 12 * REQUEST + 2 * (WRITE + hours(1))
    spending.limit(hard)
    seen = [0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            seen.append(sum(spending.used()))

    crowd = [Somebody(spending, kind, number) for number in range(CROWD // 2)]
    watcher = threading.Thread(target=watch)
    watcher.start()
    outcomes = at_once(*[somebody.live for somebody in crowd])
    is_over.set()
    watcher.join()
    assert outcomes == [None] * len(crowd)
    assert sum(somebody.refused_count for somebody in crowd) > 0
    assert hard // 2 < max(seen) <= hard
    assert all(hold.startswith("storage:") for hold in spending.holds())
    spending.clock.advance(2 * 3600)
    spending.keep_books()
    spent, held = spending.used()
    assert held == 0
    assert spent <= hard
    assert spending.faults() == []
