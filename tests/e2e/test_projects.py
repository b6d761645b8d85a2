"""Two projects on one server that reuses KV: neither answers nor counts of one depend on the other, nor does anything betray it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.e2e.customer import Answer, Customer, document, greedy, read_answer, user
from tests.e2e.home import Home
from tests.e2e.shared import Shared

TEXTS = [document(words, f"both know this, {words}") for words in (150, 500)]


@pytest.fixture
def reusing(home: Home) -> Iterator[Shared]:
    server = home.start(automatic_reuse=True, prefill_chunk_tokens=128)
    yield Shared(home, server, home.customer(server))
    assert server.terminate() == 0


def implicit(answer: Answer) -> int:
    return int(answer.usage.get("implicitCachedTokenCount", 0))


def ask_all(customer: Customer) -> list[tuple[str, int]]:
    """Text and explicit count of each answer: of caches, and of prompts that begin like them."""
    names = [customer.create(text)["name"] for text in TEXTS]
    answers = []
    for number in range(3):
        for name, text in zip(names, TEXTS, strict=True):
            answers.append(customer.ask(f"Where is number {number}?", name, tokens=12))
            answers.append(customer.ask(f"Where is number {number}?", None, text, tokens=12))
    for name in names:
        customer.delete(name)
    return [
        (answer.text, answer.usage.get("cachedContentTokenCount", 0) - implicit(answer)) for answer in answers
    ]


@contextmanager
def load(customer: Customer) -> Iterator[list[int]]:
    """Sends the same texts all the time, in more than there is room for; gives how often it was answered."""
    is_over, answered = threading.Event(), [0]

    def work(number: int) -> None:
        while not is_over.is_set():
            body = customer.body(
                f"And mine, {number}?", None, TEXTS[answered[0] % 2], document(900, f"{number} {answered[0]}")
            )
            answered[0] += customer.http.post(customer.path("generateContent"), json=body).is_success

    with ThreadPoolExecutor(2) as pool:
        for number in range(2):
            pool.submit(work, number)
        try:
            yield answered
        finally:
            is_over.set()


@pytest.mark.long
@pytest.mark.trap("T20")
def test_with_the_others_load_and_without_it_answers_and_explicit_counts_are_the_same(
    reusing: Shared,
) -> None:
    alone = ask_all(reusing.new_customer())
    ours, theirs = reusing.new_customer(), reusing.new_customer()
    with load(theirs) as answered:
        loaded = ask_all(ours)
    assert loaded == alone
    assert answered[0] > 3
    assert {count > 0 for _, count in alone[::2]} == {True}
    assert {count for _, count in alone[1::2]} == {0}


@pytest.mark.trap("T20")
def test_what_only_the_other_has_sent_is_never_a_hit(reusing: Shared) -> None:
    ours, theirs = reusing.new_customer(), reusing.new_customer()
    for text in TEXTS:
        name = theirs.create(text)["name"]
        theirs.ask("Who waits?", None, text)
        again = theirs.ask("Who waits?", None, text)
        assert implicit(again) > 100
        for expected in (0, implicit(again)):
            answer = ours.ask("Who waits?", None, text)
            assert (implicit(answer), answer.text) == (expected, again.text)
        assert ours.refusal("Who waits?", name)[0] == 403


@pytest.mark.trap("T40")
def test_the_next_turn_of_a_conversation_reads_what_came_before_it(reusing: Shared) -> None:
    """The opening of an answer is part of no cache and of no count, and yet what it opens is found."""
    customer = reusing.new_customer()
    turns = [user(TEXTS[0])]
    before = 0
    for number in range(3):
        body = {"contents": turns, "generationConfig": greedy(80)}
        answer = read_answer([customer.http.post(customer.path("generateContent"), json=body).json()])
        assert implicit(answer) >= before // 64 * 64
        before = answer.usage["promptTokenCount"]
        turns = [*turns, {"role": "model", "parts": [{"text": answer.text}]}, user(f"And then, {number}?")]
    assert before > 300
