"""Pages of caches, read while others come and go."""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest

from tests.e2e.customer import Customer, document, reason_of
from tests.e2e.processes import wait_until

KEPT, CHURNERS = 7, 3
LISTINGS, FLEETING_LISTINGS = 5, 20
ROUTE = "/v1beta/cachedContents"


@dataclass
class Churn:
    """Makes caches that live for half a second, and deletes every other of them before."""

    customer: Customer
    is_over: bool = False
    numbers: Iterator[int] = field(default_factory=count)

    def make(self, ttl: str) -> str | None:
        text = document(40, f"p {next(self.numbers)}")
        answer = self.customer.http.post(ROUTE, json=self.customer.cache_body(text, ttl))
        if answer.status_code == 200:
            name: str = answer.json()["name"]
            return name
        # Half of the memory may be full; and on a slow machine a life may be over before it began.
        assert (answer.status_code, reason_of(answer)) in {(429, "ARENA_FULL"), (504, "DEADLINE_EXCEEDED")}
        return None

    def run(self, seed: int) -> int:
        """Gives how many were made."""
        randomness, made_count = random.Random(seed), 0
        while not self.is_over:
            name = self.make("0.5s")
            made_count += name is not None
            if name is not None and randomness.random() < 0.5:
                answer = self.customer.http.delete(f"/v1beta/{name}")
                assert answer.status_code == 200 or reason_of(answer) == "CACHE_EXPIRED"
        return made_count


@contextmanager
def churning(churn: Churn) -> Iterator[None]:
    with ThreadPoolExecutor(CHURNERS) as pool:
        running = [pool.submit(churn.run, seed) for seed in range(CHURNERS)]
        try:
            yield
        finally:
            churn.is_over = True
    assert all(each.result() for each in running)


@pytest.mark.long
def test_listings_show_what_stays_once_and_end_while_caches_come_and_go(customer: Customer) -> None:
    churn = Churn(customer)
    kept: list[str] = []
    for _ in range(KEPT):  # between such as will be gone
        name = churn.make("600s")
        assert name is not None
        kept.append(name)
        churn.make("0.5s")
    with churning(churn):
        for number in range(LISTINGS):
            size = 1 + number % 3
            check_seen_once(by_pages(customer, size), kept)
            check_seen_once(by_the_sdk(customer, size), kept)
        # Now the last one of a list is one that may be gone before its page is asked for.
        for name in kept:
            customer.delete(name)
        for number in range(FLEETING_LISTINGS):
            check_seen_once(by_pages(customer, 1 + number % 2), [])
    wait_until(lambda: customer.names() == [], "what was to expire has expired")


def by_pages(customer: Customer, size: int) -> list[str]:
    """Follow the tokens by plain HTTP; no page that a token leads to is empty, and none has a token to nowhere."""
    names: list[str] = []
    query: dict[str, str | int] = {"pageSize": size}
    while True:
        answer = customer.http.get(ROUTE, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert set(page) <= {"cachedContents", "nextPageToken"}
        shown = [each["name"] for each in page.get("cachedContents", [])]
        assert len(shown) <= size
        assert shown or "pageToken" not in query
        names += shown
        if "nextPageToken" not in page:
            return names
        query["pageToken"] = page["nextPageToken"]


def by_the_sdk(customer: Customer, size: int) -> list[str]:
    with customer.sdk() as client:
        return [cache.name or "" for cache in client.caches.list(config={"page_size": size})]


def check_seen_once(names: list[str], kept: list[str]) -> None:
    seen = Counter(names)
    assert set(seen.values()) <= {1}
    assert [name for name in names if name in kept] == kept[::-1]
