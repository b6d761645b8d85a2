"""Many clients at once, and more than there is room for."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from google.genai import types

from models.cache import CacheState
from models.usage import UsageState
from tests.e2e.books import Books, quantities
from tests.e2e.customer import MODEL, Customer, document, read_answer, reason_of
from tests.e2e.home import Home
from tests.e2e.processes import wait_until
from tests.e2e.shared import Shared
from workers.engine.blocks import BLOCK_TOKENS

CLIENTS = 32
TOKENS = 6


@pytest.mark.long
def test_each_of_many_clients_gets_its_own_right_answer(customer: Customer, shared: Shared) -> None:
    held_before = shared.ballast.held_tokens()
    text = document(45, "a crowd")
    questions = [f"What does number {number} say?" for number in range(CLIENTS)]

    def ask_alone(number: int) -> str:
        """Without a cache: half of them greedily, half by their own seed."""
        body = customer.body(questions[number], None, text, tokens=TOKENS)
        body["generationConfig"] |= {"temperature": number % 2, "seed": number}
        return read_answer([customer.http.post(customer.path("generateContent"), json=body).json()]).text

    def ask(number: int) -> str:
        config = types.GenerateContentConfig(
            cached_content=name, temperature=number % 2, seed=number, max_output_tokens=TOKENS
        )
        with customer.sdk() as client:
            answer = client.models.generate_content(model=MODEL, contents=questions[number], config=config)
        return answer.text or ""

    alone = [ask_alone(number) for number in range(CLIENTS)]
    assert len(set(alone)) > CLIENTS / 2
    name = customer.create(text)["name"]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(ask, range(CLIENTS)))
    assert together == alone

    size = shared.books.cache(name).token_count
    rows = [row for row in shared.books.generations(customer.project_id) if row.cache_id]
    assert [(row.state, row.cache_read_tokens) for row in rows] == [(UsageState.FINAL, size)] * CLIENTS
    assert len({row.id for row in rows}) == CLIENTS
    bill = shared.books.proven_bill(customer.address, customer.key)
    found = size // BLOCK_TOKENS * BLOCK_TOKENS  # without a cache, by all but the first that asked alone
    assert quantities(bill)["cache_read_tokens"] == CLIENTS * size
    assert quantities(bill)["implicit_cache_read_tokens"] == (CLIENTS - 1) * found
    customer.delete(name)
    assert shared.ballast.held_tokens() == held_before


def test_a_cache_without_room_is_refused_with_the_numbers(customer: Customer, books: Books) -> None:
    answer = customer.http.post("/v1beta/cachedContents", json=customer.cache_body(document(4000, "no room")))
    assert (answer.status_code, reason_of(answer)) == (429, "ARENA_FULL")
    numbers = answer.json()["error"]["details"][0]["metadata"]
    requested, held, limit = (int(numbers[name]) for name in ("requested", "in_use", "limit"))
    assert requested > 4000
    assert held + requested > limit == 65 * 64
    for number in (requested, held, limit):
        assert str(number) in answer.json()["error"]["message"]
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


def test_more_than_may_wait_are_sent_away_unbilled(home: Home) -> None:
    server = home.start(max_running_requests=1, max_waiting_requests=1)
    customer, project_id = home.customer(server), home.books.project_id("default")
    body = customer.body("Tell me all.", None, tokens=3000)
    with (
        customer.begun(customer.path("generateContent"), body),
        customer.begun(customer.path("generateContent"), body),
    ):
        wait_until(lambda: len(home.books.generations(project_id)) == 2, "one runs, one waits")
        answer = customer.http.post(customer.path("generateContent"), json=body)
        assert (answer.status_code, reason_of(answer)) == (503, "UNAVAILABLE")
        assert int(answer.headers["retry-after"]) >= 1
        sent_away = home.books.generations(project_id)[-1]
        assert (sent_away.state, sent_away.end_reason) == (UsageState.VOID, "unavailable")
    wait_until(
        lambda: (
            customer.http.post(customer.path("generateContent"), json=customer.body("Now?", None)).is_success
        ),
        "there is room again",
    )
    assert server.terminate() == 0
