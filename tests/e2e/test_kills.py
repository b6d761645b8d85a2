"""A server that is killed at each moment of a create, a generation, an extension, a deletion and a start, in turn.

After every kill it starts again on what was left, and all that it shows, keeps and bills is compared with what must be.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
import pytest

from core.clock import format_instant
from models.cache import CacheState
from models.usage import UsageState
from tests.e2e.customer import document, read_answer, without_cost
from tests.e2e.moments import HEADER, NEVER, watch
from tests.e2e.processes import run_apart, wait_until
from tests.e2e.stage import Stage, make_quick_model, open_stage
from tests.e2e.truth import Asked, asked

ROUTE = "/v1beta/cachedContents"
QUESTION = document(50, "What is left?")  # two chunks of prefill
TOKENS = 3
TEXT = document(100, "kept")
KILLED = "worker_lost"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    run_apart(make_quick_model, folder)
    stage = open_stage(folder)
    try:
        stage.start()
        limit_spending(stage)
        yield stage
    finally:
        stage.home.close()


def limit_spending(stage: Stage) -> None:
    """With room for all: so that whatever a kill leaves must also be what is held and spent, which each check proves."""
    stage.home.command("billing", "limits", "set", "default", "--hard", "1000000", "--soft", "1")
    stage.home.command("billing", "credit", "grant", "default", "1000000", "--reference", "kills")
    stage.home.command("billing", "credit", "update", "default", "--prepaid")


@pytest.fixture(scope="module")
def kept(stage: Stage) -> str:
    """A cache that lives through every kill."""
    return stage.truth.created(stage.customer.create(TEXT, ttl="86400s"))


@pytest.mark.long
def test_a_create_leaves_a_whole_cache_or_nothing_of_one(stage: Stage) -> None:
    body = stage.customer.cache_body(TEXT)

    def create(end_at: str, key: str) -> httpx.Response:
        return stage.customer.http.post(
            ROUTE, json=body, headers={HEADER: end_at, "idempotency-key": key.replace(" ", "-")}
        )

    def use_up(name: str) -> str:
        """Ask the cache and delete it; gives its answer."""
        stage.settle()
        answer = stage.customer.ask(QUESTION, name, tokens=TOKENS)
        stage.truth.asked.append(asked(answer))
        stage.customer.delete(name)
        stage.truth.deleted(name)
        return answer.text

    moments = stage.moments(lambda end_at: create(end_at, "whole"))
    expected = use_up(stage.truth.created(create(NEVER, "whole").json()))
    assert commits(moments) == ["commit 1", "committed 1", "commit 2", "committed 2"]
    assert sum(each.startswith("forward ") for each in moments) == 3

    answers: list[dict[str, Any]] = []

    def create_once(end_at: str) -> None:
        answers.append(create(end_at, f"key of {end_at}").json())

    for moment in moments:
        answers.clear()
        before = {row.id for row in stage.caches()}
        with stage.cut_off(moment, create_once) as committed:
            left = [row for row in stage.caches() if row.id not in before]
            expected_states = [[], [CacheState.FAILED], [CacheState.ACTIVE]][committed[-1]]
            assert len(committed) == 1
            assert [row.state for row in left] == expected_states
            for row in left:
                name = f"cachedContents/{row.id}"
                if row.state is CacheState.ACTIVE:
                    stage.truth.created(stage.customer.get(name).json())
                    assert row.expire_at - row.created_at == timedelta(seconds=600)
                    assert [each["name"] for each in answers] in ([], [name])
                    assert [each["expireTime"] for each in answers] in ([], [format_instant(row.expire_at)])
                else:
                    assert (answers, row.failure) == ([], KILLED)
                    stage.truth.gone[name] = "CACHE_NOT_FOUND"
            stage.check()

            # Sent again, it has made one cache altogether, and one bill; and once more makes no other.
            again = create(NEVER, f"key of {moment}").json()
            assert ([again["name"]] == [f"cachedContents/{row.id}" for row in left]) == (committed[-1] == 2)
            name = stage.truth.created(again)
            assert without_cost(create(NEVER, f"key of {moment}").json()) == without_cost(again)
            stage.check()
            assert use_up(name) == expected
    stage.check()


@pytest.mark.long
def test_a_generation_is_owed_whole_or_not_at_all(stage: Stage, kept: str) -> None:
    chunks: list[dict[str, Any]] = []

    def ask(end_at: str) -> None:
        chunks.clear()
        with stage.customer.stream(QUESTION, kept, TOKENS, **{HEADER: end_at}) as stream:
            chunks.extend(stream)  # those that came stay, whatever ends it

    moments = stage.moments(ask)
    whole = read_answer(chunks)
    stage.truth.asked.append(asked(whole))
    assert whole.output_tokens == TOKENS
    assert {"commit 1", "commit 2", "forward 4", "publish TokensEvent 2"} <= set(moments)
    owed = asked(whole)
    void = owed._replace(state=UsageState.VOID, output_tokens=0)

    for moment in moments:
        with stage.cut_off(moment, ask) as committed:
            rows = stage.home.books.generations(stage.customer.project_id)[len(stage.truth.asked) :]
            left = [
                Asked(row.state, row.input_tokens, row.cache_read_tokens, row.output_tokens) for row in rows
            ]
            assert left in [[[], [void], [owed]][count] for count in committed]
            assert {row.end_reason for row in rows} <= {"WORKER_LOST", "MAX_TOKENS"}
            received = read_answer(chunks) if chunks else None
            assert received is None or whole.text.startswith(received.text)
            assert received is None or not received.finish_reason or left == [owed]
            stage.truth.asked += left
            stage.check()
            answer = stage.customer.ask(QUESTION, kept, tokens=TOKENS)
            assert (answer.text, asked(answer)) == (whole.text, owed)
            stage.truth.asked.append(owed)


def test_an_expiry_is_the_old_or_the_new_one(stage: Stage, kept: str) -> None:
    expiries = iter(datetime.now(UTC) + timedelta(days=2, seconds=number) for number in range(1000))
    wanted = ""

    def extend(end_at: str) -> None:
        nonlocal wanted
        wanted = format_instant(next(expiries))
        stage.customer.http.patch(f"/v1beta/{kept}", json={"expireTime": wanted}, headers={HEADER: end_at})

    moments = stage.moments(extend)
    stage.truth.live[kept] = wanted
    stage.check()
    for moment in commits(moments):
        with stage.cut_off(moment, extend) as committed:
            assert len(committed) == 1
            if committed[-1] == 1:
                stage.truth.live[kept] = wanted
            stage.check()


def test_a_deletion_is_done_or_not_begun(stage: Stage) -> None:
    def new() -> str:
        return stage.truth.created(stage.customer.create(TEXT))

    def delete(end_at: str) -> None:
        stage.customer.http.delete(f"/v1beta/{name}", headers={HEADER: end_at})

    name = new()
    moments = stage.moments(delete)
    stage.truth.deleted(name)
    for moment in commits(moments):
        name = new() if name in stage.truth.gone else name
        with stage.cut_off(moment, delete) as committed:
            assert len(committed) == 1
            if committed[-1] == 1:
                stage.truth.deleted(name)
            stage.check()
    assert name in stage.truth.gone


def test_a_start_that_is_killed_is_made_up_for_by_the_next(stage: Stage, kept: str) -> None:
    """With a build and a generation to settle that another kill has cut off."""
    stage.settle()
    customer, project_id = stage.customer, stage.customer.project_id
    body = customer.body(QUESTION, None, tokens=700)
    # As slow as an answer can be, so that it is surely under way when the create comes.
    body["generationConfig"] |= {"candidateCount": 4, "responseLogprobs": True, "logprobs": 20}
    before, asked_before = len(stage.caches()), len(stage.truth.asked)
    with customer.begun(customer.path("generateContent"), body):
        wait_until(
            lambda: len(stage.home.books.generations(project_id)) > asked_before, "the request is there"
        )
        with pytest.raises(httpx.TransportError):
            customer.http.post(ROUTE, json=customer.cache_body(TEXT), headers={HEADER: "send BuildCache 1"})
    stage.server.process.join()
    assert stage.caches()[-1].state is CacheState.PENDING

    for moment in ("commit 1", "committed 1", "forward 1", "commit 2", "committed 2"):
        stage.home.before_start = partial(watch, stage.journal, moment)
        process, _, log = stage.home.launch((), {})
        process.join()
        assert process.exitcode == -9, log.read_text()
    stage.home.before_start = partial(watch, stage.journal)
    stage.start()
    (failed,) = stage.caches()[before:]
    assert (failed.state, failed.failure) == (CacheState.FAILED, KILLED)
    stage.truth.gone[f"cachedContents/{failed.id}"] = "CACHE_NOT_FOUND"
    (void,) = stage.home.books.generations(project_id)[asked_before:]
    assert void.state is UsageState.VOID
    stage.truth.asked.append(
        Asked(UsageState.VOID, void.input_tokens, void.cache_read_tokens, output_tokens=0)
    )
    stage.check()
    stage.settle()
    assert stage.server.terminate() == 0


def commits(moments: list[str]) -> list[str]:
    """Those at which what is kept may change."""
    return [moment for moment in moments if moment.startswith("commit")]
