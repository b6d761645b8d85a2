"""Clients that hang up, or whose time is up: the engine stops within a step, what was produced is owed, and nobody else notices."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from models.cache import Cache, CacheState
from models.usage import Usage, UsageState
from tests.e2e.books import Books, quantities
from tests.e2e.customer import Customer, document, read_answer
from tests.e2e.processes import wait_until

ENDLESS = 3000


def settled(books: Books, customer: Customer) -> Usage:
    """The row of the first request, once none runs any more."""
    wait_until(
        lambda: all(row.state is not UsageState.RESERVED for row in books.generations(customer.project_id)),
        "usage is settled",
        within_seconds=20,
    )
    return books.generations(customer.project_id)[0]


def test_of_a_stream_what_was_produced_is_owed(customer: Customer, books: Books) -> None:
    cache = customer.create(document(200, "a stream"))
    with customer.stream("Tell me all.", cache["name"], ENDLESS) as chunks:
        delivered = read_answer(list(islice(chunks, 5))).output_tokens
    row = settled(books, customer)
    assert (row.state, row.end_reason) == (UsageState.FINAL, "CANCELLED")
    assert 5 <= delivered <= row.output_tokens < ENDLESS / 3
    bill = books.proven_bill(customer.address, customer.key)
    assert quantities(bill)["output_tokens"] == row.output_tokens


def test_of_an_array_too(customer: Customer, books: Books) -> None:
    body = customer.body("Tell me all.", None, tokens=ENDLESS)
    with customer.http.stream("POST", customer.path("streamGenerateContent"), json=body) as answer:
        assert next(answer.iter_text()).startswith("[{")
    row = settled(books, customer)
    assert (row.state, row.end_reason) == (UsageState.FINAL, "CANCELLED")
    assert 1 <= row.output_tokens < ENDLESS / 3


def test_of_an_answer_in_one_piece_what_was_produced_is_owed(customer: Customer, books: Books) -> None:
    cache = customer.create(document(200, "one piece"))
    with customer.begun(
        customer.path("generateContent"), customer.body("Tell all.", cache["name"], tokens=ENDLESS)
    ):
        wait_until(lambda: books.generations(customer.project_id), "the request runs")
        # Admitted later, in step with it: when this one has its eight tokens, the first has some too.
        assert customer.ask("And you?", cache["name"], tokens=8).output_tokens == 8
    row = settled(books, customer)
    assert (row.state, row.end_reason) == (UsageState.FINAL, "CANCELLED")
    assert 8 < row.output_tokens < ENDLESS / 3


def test_a_deadline_in_mid_stream_is_told_and_what_was_produced_is_owed(
    customer: Customer, books: Books
) -> None:
    name = customer.create(document(200, "a deadline"))["name"]
    with customer.stream("Tell me all.", name, ENDLESS, **{"x-server-timeout": "1"}) as chunks:
        *delivered, last = chunks
    assert (last["error"]["code"], last["error"]["status"]) == (504, "DEADLINE_EXCEEDED")
    row = settled(books, customer)
    assert (row.state, row.end_reason) == (UsageState.FINAL, "CANCELLED")
    assert 1 <= read_answer(delivered).output_tokens <= row.output_tokens < ENDLESS


def test_before_the_first_token_nothing_is_owed(customer: Customer, books: Books) -> None:
    body = customer.body("What is it about?", None, document(3000, "no token yet"), tokens=ENDLESS)
    with customer.begun(customer.path("generateContent"), body):
        wait_until(lambda: books.generations(customer.project_id), "the request runs")
    row = settled(books, customer)
    assert (row.state, row.output_tokens, row.end_reason) == (UsageState.VOID, 0, "CANCELLED")
    assert books.proven_bill(customer.address, customer.key)["amountNanoUsd"] == 0


def test_a_cache_that_nobody_waits_for_is_not_built(customer: Customer, books: Books) -> None:
    def cache() -> Cache:
        (row,) = books.caches(customer.project_id)
        return row

    with customer.begun("/v1beta/cachedContents", customer.cache_body(document(3800, "nobody waits"))):
        wait_until(lambda: books.caches(customer.project_id), "the cache is being built")
        assert cache().state is CacheState.PENDING
    wait_until(lambda: cache().state is not CacheState.PENDING, "the build is given up", within_seconds=20)
    assert (cache().state, cache().failure) == (CacheState.FAILED, "cancelled")
    assert (cache().messages, cache().prefix_text) == (None, None)
    assert not books.usage(customer.project_id)
    assert not books.segments(customer.project_id)
    assert customer.names() == []
    assert books.proven_bill(customer.address, customer.key)["amountNanoUsd"] == 0


@pytest.mark.long
def test_others_do_not_notice(customer: Customer, books: Books) -> None:
    name = customer.create(document(200, "a bystander"))["name"]
    alone = customer.ask("Is somebody there?", name, tokens=150)

    def rows() -> int:
        return len(books.generations(customer.project_id)) + len(books.caches(customer.project_id))

    def hang_up_thrice() -> None:
        before = rows()
        with customer.stream("Tell me all.", name, ENDLESS) as chunks:
            next(chunks)
        with customer.begun(
            customer.path("generateContent"), customer.body("Tell all.", name, tokens=ENDLESS)
        ):
            wait_until(lambda: rows() == before + 2, "the second request runs")
        with customer.begun("/v1beta/cachedContents", customer.cache_body(document(3000, "a bystander"))):
            wait_until(lambda: rows() == before + 3, "the cache is being built")

    rounds = 0
    with ThreadPoolExecutor(1) as pool:
        before = rows()
        among_others = pool.submit(customer.ask, "Is somebody there?", name, tokens=150)
        wait_until(lambda: rows() > before, "the bystander's request runs")
        while not among_others.done():
            hang_up_thrice()
            rounds += 1
    assert among_others.result() == alone
    assert rounds >= 1
