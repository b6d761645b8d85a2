"""Memory: who gets it, who waits for it, who is refused, and that all of it comes back."""

import random

import pytest

from core.errors import ArenaFull
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import random_tokens
from workers.engine.sequence import Ending

# A prompt of more than 64 tokens takes its whole blocks of the arena, and so does every full tail of an answer (128).
BUILT, ANSWERED, CANCELLED = (Ending.BUILT, None), (Ending.MAX_TOKENS, None), (Ending.CANCELLED, None)


def assert_refused(answer: Answer, *, requested: int, held: int, limit: int) -> None:
    assert answer.ending == Ending.FAILED
    assert isinstance(answer.error, ArenaFull)
    assert answer.error.metadata == {
        "quota": "arena_tokens",
        "requested": str(requested),
        "in_use": str(held),
        "limit": str(limit),
    }
    assert str(requested) in answer.error.message


def test_a_cache_takes_whole_blocks_and_gives_them_back_when_dropped(drive: Drive) -> None:
    driver = drive()
    driver.build("cache", random_tokens(65, seed=1))
    assert driver.used_blocks() == 2
    driver.drop("cache")
    driver.drop("cache")
    driver.drop("unknown")
    assert driver.used_blocks() == 0
    assert driver.ask([1], "cache").ending == Ending.PREFIX_MISSING


@pytest.mark.trap("T35")
def test_a_dropped_cache_stays_until_its_last_reader_has_finished(drive: Drive) -> None:
    driver = drive(max_running_requests=2)
    driver.build("cache", random_tokens(130, seed=1))
    used: list[int] = []
    with driver.standing_still():
        readers = [
            driver.ask([n], "cache", max_output_tokens=n) for n in (6, 3, 5)
        ]  # the third waits for a seat
        driver.at_step(1, lambda: driver.engine.drop("cache"))
        for step in range(3, 8):
            driver.at_step(step, lambda: used.append(driver.engine._arena.pool.used_count))
    assert [reader.outcome for reader in readers] == [ANSWERED] * 3
    for reader in readers:
        assert_like_oracle(driver.oracle, reader)
    assert used == [3] * 5
    assert driver.used_blocks() == 0
    assert driver.ask([1], "cache").ending == Ending.PREFIX_MISSING


def test_a_cache_that_is_dropped_while_it_is_built_is_given_up(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        build = driver.start_build("cache", random_tokens(500, seed=1))
        driver.at_step(2, lambda: driver.engine.drop("cache"))
    assert build.outcome == CANCELLED
    assert driver.engine.counters.prefill_tokens == 300
    assert driver.used_blocks() == 0


def test_a_cache_that_is_dropped_while_others_wait_for_it_is_finished_for_them_alone(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        build = driver.start_build("cache", random_tokens(500, seed=1))
        followers = [driver.ask([n], "cache") for n in (1, 2)]
        driver.at_step(2, lambda: driver.engine.drop("cache"))
    assert build.outcome == BUILT
    for follower in followers:
        assert follower.outcome == ANSWERED
        assert_like_oracle(driver.oracle, follower)
    assert driver.used_blocks() == 0
    assert driver.ask([1], "cache").ending == Ending.PREFIX_MISSING


def test_caches_may_take_their_share_and_no_more(drive: Drive) -> None:
    driver = drive(blocks=10)
    driver.build("one", random_tokens(3 * 64, seed=1))
    assert_refused(
        driver.start_build("too large", random_tokens(129, seed=2)), requested=129, held=192, limit=320
    )
    driver.build("fits", random_tokens(128, seed=3))
    driver.drop("fits")
    driver.build("fits again", random_tokens(65, seed=4))
    with driver.standing_still():  # neither has its blocks yet when the other asks
        driver.drop("one")
        first, second = (
            driver.start_build(name, random_tokens(120, seed=seed))
            for seed, name in ((5, "first"), (6, "second"))
        )
    assert first.outcome == BUILT
    assert_refused(second, requested=120, held=256, limit=320)


def test_a_rebuild_was_promised_its_room_before(drive: Drive) -> None:
    """Its share is not asked again (the arena may have been made smaller), only whether it can fit at all."""
    driver = drive(blocks=10)
    driver.build("one", random_tokens(5 * 64, seed=1))
    assert driver.start_build("two", random_tokens(5 * 64, seed=2), is_rebuild=True).outcome == BUILT
    assert_refused(
        driver.start_build("three", random_tokens(1, seed=3), is_rebuild=True),
        requested=1,
        held=640,
        limit=640,
    )


def test_caches_that_have_ended_but_are_read_still_count(drive: Drive) -> None:
    """Or a new cache could take the room that their readers need to finish."""
    driver = drive(blocks=10, max_running_requests=1)
    driver.build("ended", random_tokens(5 * 64, seed=1))
    with driver.standing_still():
        running = driver.ask([1], "ended", max_output_tokens=5)
        waiting = driver.ask(random_tokens(4 * 64, seed=2), "ended", max_output_tokens=5)
        driver.drop("ended")
        new = driver.start_build("new", random_tokens(64, seed=3))
    assert_refused(new, requested=64, held=320, limit=320)
    for reader in (running, waiting):
        assert reader.outcome == ANSWERED
        assert_like_oracle(driver.oracle, reader)
    driver.build("new", random_tokens(5 * 64, seed=3))


def test_a_request_that_can_never_fit_is_refused_at_once(drive: Drive) -> None:
    driver = drive(blocks=10)
    driver.build("cache", random_tokens(5 * 64, seed=1))
    with driver.standing_still():
        long_prompt = driver.ask(random_tokens(385, seed=2), "cache")
        long_answer = driver.ask([1], max_output_tokens=3 * 128)
        fits = driver.ask(random_tokens(384, seed=3), "cache", max_output_tokens=63)
    assert_refused(long_prompt, requested=384, held=320, limit=640)
    assert_refused(long_answer, requested=384, held=320, limit=640)
    assert fits.outcome == ANSWERED
    assert_like_oracle(driver.oracle, fits)


@pytest.mark.trap("T32")
def test_pins_that_take_all_they_may_leave_other_requests_their_room(drive: Drive) -> None:
    driver = drive(blocks=12)
    for number in range(6):
        driver.build(f"cache {number}", random_tokens(64, seed=number))
    assert driver.start_build("one too many", random_tokens(1, seed=7)).ending == Ending.FAILED
    with driver.standing_still():
        answers = [driver.ask(random_tokens(n, seed=n), max_output_tokens=70) for n in (1, 200, 300, 65, 310)]
        answers.append(driver.ask(random_tokens(100, seed=9), "cache 5", max_output_tokens=70))
    for answer in answers:
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer)


def test_what_does_not_fit_now_waits_its_turn(drive: Drive) -> None:
    driver = drive(blocks=10)
    driver.build("cache", random_tokens(4 * 64, seed=1))
    with driver.standing_still():
        answers = [
            driver.ask(random_tokens(300, seed=n), "cache", request_id=f"request {n}", max_output_tokens=4)
            for n in range(4)
        ]
    assert [answer.outcome for answer in answers] == [ANSWERED] * 4
    assert driver.events[1:] == sorted(driver.events[1:])
    for answer in answers:
        assert_like_oracle(driver.oracle, answer)


def test_a_cache_waits_for_room_that_requests_hold_and_no_later_request_takes_it(drive: Drive) -> None:
    driver = drive(blocks=10)
    late: list[Answer] = []

    def come_late() -> None:
        late.append(driver.start_build("cache", random_tokens(300, seed=4)))
        late.extend(
            driver.ask(random_tokens(150, seed=n), request_id="late", max_output_tokens=20) for n in range(5)
        )

    with driver.standing_still():
        running = [driver.ask(random_tokens(150, seed=n), max_output_tokens=5 + 3 * n) for n in range(5)]
        driver.at_step(5, come_late)
    assert [answer.outcome for answer in running] == [ANSWERED] * 5
    assert [answer.outcome for answer in late] == [BUILT, *[ANSWERED] * 5]
    assert driver.events.index("cache") < driver.events.index("late")


def test_a_request_that_nothing_makes_room_for_is_refused_before_it_blocks_the_others(drive: Drive) -> None:
    """It came when it could have fitted; since then a promised cache has taken the room."""
    driver = drive(blocks=10)
    late: list[Answer] = []
    with driver.standing_still():
        first = driver.ask(random_tokens(400, seed=1), max_output_tokens=5)
        second = driver.ask(random_tokens(400, seed=2), max_output_tokens=5)
        third = driver.ask([1])
        driver.at_step(
            1, lambda: late.append(driver.start_build("cache", random_tokens(300, seed=3), is_rebuild=True))
        )
    assert first.outcome == ANSWERED
    assert late[0].outcome == BUILT
    assert_refused(second, requested=384, held=320, limit=640)
    assert third.outcome == ANSWERED


def test_private_memory_in_many_pieces_is_as_good_as_one_run(drive: Drive) -> None:
    driver = drive(blocks=16, pinned_share=1.0, tail_tokens=64)
    for number in range(16):
        driver.build(f"block {number}", random_tokens(64, seed=number))
    for number in range(0, 16, 2):
        driver.drop(f"block {number}")
    with driver.standing_still():
        answers = [
            driver.ask(random_tokens(150, seed=50), "block 1", max_output_tokens=100),
            driver.ask(random_tokens(20, seed=51), "block 3", max_output_tokens=150),
        ]
    for answer in answers:
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer)


@pytest.mark.trap("T29")
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_in_whatever_order_all_answers_are_right_and_all_memory_comes_back(
    drive: Drive, seed: int
) -> None:
    """The fixture checks the memory, between any two steps and at the end."""
    driver = drive(blocks=40, max_running_requests=4, tail_tokens=32, prefill_chunk_tokens=64)
    dice = random.Random(seed)
    answers: list[Answer] = []
    for round_number in range(4):
        with driver.standing_still():
            for number in range(12):
                do_something(driver, dice, f"{round_number}.{number}", answers)
    for answer in answers:
        assert answer.ending in {Ending.MAX_TOKENS, Ending.CANCELLED, Ending.PREFIX_MISSING, Ending.FAILED}
        assert answer.error is None or isinstance(answer.error, ArenaFull)
        if answer.tokens:
            assert_like_oracle(driver.oracle, answer)
    assert sum(answer.ending == Ending.MAX_TOKENS for answer in answers) > 8


def do_something(driver: Driver, dice: random.Random, name: str, answers: list[Answer]) -> None:
    caches = list(driver.cache_tokens)
    action = dice.choice(["build", "ask", "ask", "ask", "ask", "cancel", "drop"])
    step = dice.randrange(20)
    if action == "build":
        driver.start_build(name, random_tokens(dice.randrange(1, 400), seed=dice.randrange(10**6)))
        if dice.random() < 0.2:
            driver.at_step(step, lambda: driver.engine.cancel(name))
    elif action == "ask":
        cache_id = dice.choice([*caches, None])
        tokens = random_tokens(dice.randrange(1, 100), seed=dice.randrange(10**6))
        answers.append(driver.ask(tokens, cache_id, request_id=name, max_output_tokens=dice.randrange(1, 50)))
        if dice.random() < 0.2:
            driver.at_step(step, lambda: driver.engine.cancel(name))
    elif action == "drop" and caches:
        gone = dice.choice(caches)
        driver.at_step(step, lambda: driver.engine.drop(gone))
