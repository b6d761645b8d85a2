"""Many clients at once, and more than there is room for."""

from concurrent.futures import ThreadPoolExecutor

import httpx

from models.cache import CacheState
from models.usage import UsageState
from tests.e2e.books import Books, quantities
from tests.e2e.customer import Customer, document, reason_of
from tests.e2e.shared import Shared

CLIENTS = 32
TOKENS = 6


def test_each_of_many_clients_gets_its_own_right_answer(customer: Customer, shared: Shared) -> None:
    held_before = shared.held_tokens()
    text = document(70, "a crowd")
    questions = [f"What does number {number} say?" for number in range(CLIENTS)]
    expected = [customer.ask(question, None, text, tokens=TOKENS).text for question in questions]
    assert len(set(expected)) > CLIENTS / 2
    name = customer.create(text)["name"]

    def ask(question: str) -> str:
        with customer.sdk() as client:
            answer = client.models.generate_content(
                model="tiny",
                contents=question,
                config={"cached_content": name, "temperature": 0, "max_output_tokens": TOKENS},
            )
        return answer.text or ""

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(ask, questions)) == expected

    size = shared.books.cache(name).token_count
    rows = [row for row in shared.books.generations(customer.project_id) if row.cache_id]
    assert [(row.state, row.cache_read_tokens) for row in rows] == [(UsageState.FINAL, size)] * CLIENTS
    assert len({row.id for row in rows}) == CLIENTS
    bill = shared.books.proven_bill(customer.address, customer.key)
    assert quantities(bill)["cache_read_tokens"] == CLIENTS * size
    customer.delete(name)
    assert shared.held_tokens() == held_before


def test_a_cache_without_room_is_refused_with_the_numbers(customer: Customer, books: Books) -> None:
    answer = customer.http.post("/v1beta/cachedContents", json=customer.cache_body(document(4000, "no room")))
    assert (answer.status_code, reason_of(answer)) == (429, "ARENA_FULL")
    numbers = answer.json()["error"]["details"][0]["metadata"]
    requested, held, limit = (int(numbers[f"{name}_tokens"]) for name in ("requested", "held", "limit"))
    assert requested > 4000
    assert held + requested > limit == 65 * 64
    for number in numbers.values():
        assert number in answer.json()["error"]["message"]
    (row,) = books.caches(customer.project_id)
    assert (row.state, row.failure, row.messages) == (CacheState.FAILED, "arena_full", None)
    assert not books.usage(customer.project_id)
    assert not books.segments(customer.project_id)
    assert customer.names() == []
    assert books.proven_bill(customer.address, customer.key)["amountNanoUsd"] == 0
    customer.create(document(100, "room enough"))


def test_of_two_that_fit_one_by_one_the_second_is_refused(customer: Customer, books: Books) -> None:
    def create(number: int) -> httpx.Response:
        return customer.http.post(
            "/v1beta/cachedContents", json=customer.cache_body(document(2200, f"two {number}"))
        )

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(create, range(2)))
    assert sorted(answer.status_code for answer in answers) == [200, 429]
    (name,) = customer.names()
    (write,) = books.writes(customer.project_id)
    assert f"cachedContents/{write.cache_id}" == name
    customer.delete(name)
    assert create(3).status_code == 200
