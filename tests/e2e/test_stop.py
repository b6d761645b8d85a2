"""SIGTERM with requests under way: what can finish does, the rest is told, all is settled, and the status is 0."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from models.cache import CacheState
from models.usage import UsageState
from tests.e2e.books import quantities
from tests.e2e.customer import Answer, Customer, document, read_answer, reason_of
from tests.e2e.home import Home
from tests.e2e.processes import STOP_SECONDS, wait_until

ENDLESS = 3500


def test_requests_finish_or_are_told(home: Home) -> None:
    # Room for all at once, and a long create takes many steps too.
    server = home.start(prefill_chunk_tokens=1, arena_bytes=2 * int(home.settings["arena_bytes"]))
    customer, project_id = home.customer(server), home.books.project_id("default")
    name = customer.create(document(64, "stop"))["name"]
    expected = customer.ask("Be brief.", name, tokens=30)

    def rows() -> int:
        return len(home.books.generations(project_id)) + len(home.books.caches(project_id))

    with ThreadPoolExecutor(4) as pool:
        before = rows()
        long = pool.submit(stream, customer, name, "Tell me all.", ENDLESS)
        unary = pool.submit(customer.ask, "Tell me all.", name, tokens=ENDLESS)
        create = pool.submit(
            customer.http.post, "/v1beta/cachedContents", json=customer.cache_body(document(3800, "late"))
        )
        wait_until(lambda: rows() == before + 3, "they run")
        with customer.stream("Be brief.", name, 30) as chunks:
            first = next(chunks)
            started = time.monotonic()
            status = server.terminate()
            brief = read_answer([first, *chunks])
        assert time.monotonic() - started < STOP_SECONDS

    assert status == 0
    assert not (home.data_dir / "pid").exists()
    assert brief == expected
    for cut in (long.result(), unary.result()):
        assert cut.finish_reason == "OTHER", cut
        assert 0 < cut.output_tokens < ENDLESS
    refused = create.result()
    assert (refused.status_code, reason_of(refused)) == (503, "UNAVAILABLE")

    generations = home.books.generations(project_id)
    assert {row.state for row in generations} == {UsageState.FINAL}
    owed = sorted(row.output_tokens for row in generations)
    assert owed == sorted([30, 30, long.result().output_tokens, unary.result().output_tokens])
    late = home.books.caches(project_id)[-1]
    assert (late.state, late.failure, late.messages) == (CacheState.FAILED, "unavailable", None)
    assert len(home.books.writes(project_id)) == 1

    again = home.start()
    bill = home.books.proven_bill(again.address, home.operator_key)
    assert quantities(bill)["output_tokens"] == sum(owed)
    assert home.customer(again).ask("Be brief.", name, tokens=30) == expected
    assert again.terminate() == 0


def test_a_closed_terminal_stops_it_in_order_unless_it_was_told_to_stay(home: Home) -> None:
    server = home.start()
    os.kill(server.pid, signal.SIGHUP)
    assert server.wait() == 0
    assert not (home.data_dir / "pid").exists()

    home.before_start = ignore_hang_ups
    server = home.start()
    os.kill(server.pid, signal.SIGHUP)
    assert home.customer(server).names() == []
    assert server.terminate() == 0


def ignore_hang_ups() -> None:
    """What nohup does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def stream(customer: Customer, name: str, question: str, tokens: int) -> Answer:
    with customer.stream(question, name, tokens) as chunks:
        return read_answer(list(chunks))
