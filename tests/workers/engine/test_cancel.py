"""Whatever is cancelled stops within one step, gives back all it held, and disturbs nobody."""

import pytest

from core.sampling import Sampling
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import GREEDY, NAMESPACE, Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import random_tokens
from workers.engine.sequence import Ending

CANCELLED = (Ending.CANCELLED, None)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_in_the_prefill_of_a_long_prompt(drive: Drive, step: int) -> None:
    driver = drive()
    with driver.standing_still():
        long_prompt = driver.ask(random_tokens(390, seed=1), request_id="long")
        mate = driver.ask(random_tokens(10, seed=2))
        driver.at_step(step, lambda: driver.engine.cancel("long"))
    assert long_prompt.outcome == CANCELLED
    assert len(long_prompt.tokens) == (step == 3)
    assert driver.engine.counters.prefill_tokens <= 100 * (step + 1)
    assert mate.outcome == (Ending.MAX_TOKENS, None)
    assert_like_oracle(driver.oracle, mate)


def test_in_the_middle_of_an_answer(drive: Drive) -> None:
    driver = drive()
    driver.build("cache", random_tokens(70, seed=1))
    with driver.standing_still():
        cancelled = driver.ask([1, 2], "cache", request_id="cancelled", max_output_tokens=200)
        mates = [driver.ask([n, n], "cache", max_output_tokens=20) for n in (3, 4)]
        driver.at_step(5, lambda: driver.engine.cancel("cancelled"))
    assert cancelled.outcome == CANCELLED
    assert len(cancelled.tokens) == 6
    assert_like_oracle(driver.oracle, cancelled)
    for mate in mates:
        assert mate.outcome == (Ending.MAX_TOKENS, None)
        assert_like_oracle(driver.oracle, mate)


def test_while_it_waits_for_a_seat(drive: Drive) -> None:
    driver = drive(max_running_requests=1)
    with driver.standing_still():
        running = driver.ask([1], max_output_tokens=6)
        waiting = [driver.ask([n], request_id=f"waiting {n}", max_output_tokens=1) for n in (2, 3, 4)]
        driver.engine.cancel("waiting 3")
    assert [answer.ending for answer in (running, *waiting)] == [
        Ending.MAX_TOKENS,
        Ending.MAX_TOKENS,
        Ending.CANCELLED,
        Ending.MAX_TOKENS,
    ]
    assert not waiting[1].tokens


def test_while_it_waits_for_a_build(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        build = driver.start_build("cache", random_tokens(500, seed=1))
        gone = driver.ask([1], "cache", request_id="gone")
        stays = driver.ask([2], "cache")
        driver.at_step(1, lambda: driver.engine.cancel("gone"))
    assert gone.outcome == CANCELLED
    assert build.outcome == (Ending.BUILT, None)
    assert stays.outcome == (Ending.MAX_TOKENS, None)
    assert_like_oracle(driver.oracle, stays)


@pytest.mark.trap("T26")
@pytest.mark.parametrize("step", [0, 2, 4])
def test_a_build_and_those_who_wait_for_it(drive: Drive, step: int) -> None:
    """What was built in part is never published: the next one to ask finds nothing."""
    driver = drive()
    tokens = random_tokens(500, seed=1)
    with driver.standing_still():
        build = driver.start_build("cache", tokens)
        follower = driver.ask([1], "cache")
        other = driver.ask([2], max_output_tokens=20)
        # The first step may be the prompt's: the last chunk of the build is never before the fifth.
        driver.at_step(step, lambda: driver.engine.cancel("cache"))
    assert build.outcome == CANCELLED
    assert follower.outcome == CANCELLED
    assert other.outcome == (Ending.MAX_TOKENS, None)
    assert_like_oracle(driver.oracle, other)
    assert driver.used_blocks() == 0
    assert driver.ask([1], "cache").ending == Ending.PREFIX_MISSING
    driver.build("cache", tokens)
    again = driver.ask([1], "cache")
    assert again.outcome
    assert_like_oracle(driver.oracle, again)


def test_a_build_that_has_no_room_yet(drive: Drive) -> None:
    driver = drive(blocks=8)
    builds: list[Answer] = []
    with driver.standing_still():
        running = driver.ask(random_tokens(330, seed=1), max_output_tokens=12)
        driver.at_step(0, lambda: builds.append(driver.start_build("cache", random_tokens(250, seed=2))))
        driver.at_step(4, lambda: driver.engine.cancel("cache"))
    assert running.outcome == (Ending.MAX_TOKENS, None)
    assert builds[0].outcome == CANCELLED
    assert driver.engine.counters.prefill_tokens == 330


def test_a_finished_cache_is_not_cancelled(drive: Drive) -> None:
    """The cancel of a create may come in the moment it has ended well; only a drop takes the cache away."""
    driver = drive()
    driver.build("cache", random_tokens(70, seed=1))
    driver.engine.cancel("cache")
    assert driver.ask([1], "cache").ending == Ending.MAX_TOKENS


def test_what_has_ended_or_never_was_is_ignored(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        twice = driver.ask([1], request_id="twice", max_output_tokens=50)
        for name in ("never was", "twice", "twice"):
            driver.engine.cancel(name)
    assert twice.outcome == CANCELLED
    driver.engine.cancel("twice")
    assert driver.ask([1]).ending == Ending.MAX_TOKENS


def everything(driver: Driver) -> dict[str, list[Answer]]:
    """All that can be under way, by what cancels it: a build and who waits for it, a prompt and who waits for its KV, several
    answers, and one that outgrows its tail."""
    text, drawing = random_tokens(260, seed=1), Sampling(1.0, 1.0, 0, 3)
    with driver.standing_still():
        return {
            "cache": [driver.start_build("cache", text[:220])],
            "follower": [driver.ask([1, 2], "cache", request_id="follower", max_output_tokens=4)],
            "first": [driver.ask([*text, 1], request_id="first", namespace=NAMESPACE, max_output_tokens=3)],
            "second": [driver.ask([*text, 2], request_id="second", namespace=NAMESPACE, max_output_tokens=3)],
            "several": driver.ask_for_candidates(
                [*text[:100], 3],
                None,
                [GREEDY, drawing],
                request_id="several",
                namespace=NAMESPACE,
                max_output_tokens=3,
            ),
            "long": [driver.ask(text[:28], request_id="long", max_output_tokens=14)],
        }


@pytest.mark.parametrize("name", ["cache", "follower", "first", "second", "several", "long"])
def test_anything_at_every_step(drive: Drive, name: str) -> None:
    """It ends once, the others end as they would have, and no memory and no half of a cache is left: the fixture looks."""
    undisturbed = drive(tail_tokens=32, blocks=64)
    expected: dict[str, list[list[int]]] = {}
    for each, answers in everything(undisturbed).items():
        assert all(answer.outcome for answer in answers)
        expected[each] = [answer.tokens for answer in answers]
    steps = undisturbed.engine.counters.steps
    assert steps > 8
    for step in range(steps):
        driver = Driver(undisturbed.model._module, undisturbed.oracle, tail_tokens=32, blocks=64)
        driver.at_step(step, lambda: driver.engine.cancel(name))  # noqa: B023 - called within this turn
        for each, answers in everything(driver).items():
            for answer, tokens in zip(answers, expected[each], strict=True):
                assert answer.outcome
                may_end_early = each == name or (name, each) == ("cache", "follower")
                if may_end_early and answer.ending == Ending.CANCELLED:
                    assert answer.tokens == tokens[: len(answer.tokens)]
                elif each == "cache":
                    assert answer.ending == Ending.BUILT
                else:
                    assert (answer.ending, answer.tokens) == (Ending.MAX_TOKENS, tokens)
        again = driver.start_build("cache", random_tokens(260, seed=1)[:220])
        hit = driver.ask([1, 2], "cache", max_output_tokens=4)
        assert (again.ending, hit.ending) == (Ending.BUILT, Ending.MAX_TOKENS)
        assert hit.tokens == expected["follower"][0]
        driver.close()


def test_the_last_who_waits_for_a_cache_that_has_ended(drive: Drive) -> None:
    """Its build goes on for who asked before it ended, and for nobody else."""
    driver, tokens = drive(), random_tokens(3000, seed=1)
    with driver.standing_still():
        build = driver.start_build("cache", tokens)
        asked = [driver.ask([n], "cache", request_id=f"waits {n}") for n in (1, 2)]
        driver.at_step(0, lambda: driver.drop("cache"))
        driver.at_step(2, lambda: driver.engine.cancel("waits 1"))
        driver.at_step(4, lambda: driver.engine.cancel("waits 2"))
    assert [each.outcome for each in (*asked, build)] == [CANCELLED] * 3
    assert driver.engine.counters.prefill_tokens == 5 * 100
    assert (
        driver.call(
            lambda: driver.engine._tree.match(driver.engine._tree.top(NAMESPACE), tuple(tokens)).node.end
        )
        == 0
    )
