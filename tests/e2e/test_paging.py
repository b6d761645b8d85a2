"""Pages of caches, read while others come and go."""

import random
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

from tests.e2e.customer import Customer, document, reason_of
from tests.e2e.processes import wait_until

KEPT, LISTINGS, CHURNERS = 7, 5, 3
ROUTE = "/v1beta/cachedContents"


def test_listings_show_what_stays_once_and_end_while_caches_come_and_go(customer: Customer) -> None:
    numbers = count()
    over: list[bool] = []

    def make(ttl: str) -> str | None:
        answer = customer.http.post(ROUTE, json=customer.cache_body(document(40, f"p {next(numbers)}"), ttl))
        if answer.status_code == 200:
            name: str = answer.json()["name"]
            return name
        # Half of the memory may be full; and on a slow machine a life may be over before it began.
        assert (answer.status_code, reason_of(answer)) in {(429, "ARENA_FULL"), (504, "DEADLINE_EXCEEDED")}
        return None

    def churn(seed: int) -> int:
        """Make caches that live for half a second, and delete every other of them before."""
        randomness, made = random.Random(seed), 0
        while not over:
            name = make("0.5s")
            if name is not None:
                made += 1
                if randomness.random() < 0.5:
                    gone = customer.http.delete(f"/v1beta/{name}")
                    assert gone.status_code == 200 or reason_of(gone) == "CACHE_EXPIRED"
        return made

    kept: list[str] = []
    with ThreadPoolExecutor(CHURNERS) as pool, ExitStack() as ending:
        ending.callback(over.append, True)
        while len(kept) < KEPT:  # between such as will be gone
            name = make("600s")
            assert name is not None
            kept.append(name)
            make("0.5s")
        churners: list[Future[int]] = [pool.submit(churn, seed) for seed in range(CHURNERS)]
        for number in range(LISTINGS):
            size = 1 + number % 3
            check_seen_once(by_pages(customer, size), kept)
            check_seen_once(by_the_sdk(customer, size), kept)
    assert all(churner.result() for churner in churners)
    wait_until(lambda: customer.names() == kept[::-1], "what was to expire has expired")


def by_pages(customer: Customer, size: int) -> list[str]:
    """Follow the tokens by plain HTTP; no page that a token leads to is empty, and none has a token to nowhere."""
    names: list[str] = []
    query: dict[str, str | int] = {"pageSize": size}
    while True:
        answer = customer.http.get(ROUTE, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert set(page) <= {"cachedContents", "nextPageToken"}
        shown = [each["name"] for each in page["cachedContents"]]
        assert 1 <= len(shown) <= size
        names += shown
        if "nextPageToken" not in page:
            return names
        query["pageToken"] = page["nextPageToken"]


def by_the_sdk(customer: Customer, size: int) -> list[str]:
    with customer.sdk() as client:
        return [cache.name or "" for cache in client.caches.list(config={"page_size": size})]


def check_seen_once(names: list[str], kept: list[str]) -> None:
    seen = Counter(names)
    assert set(seen.values()) == {1}
    assert [name for name in names if name in kept] == kept[::-1]
