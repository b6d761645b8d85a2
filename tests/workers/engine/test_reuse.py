"""What was computed once is not computed again: between requests, between caches, and never between projects."""

import random

import pytest

from core.sampling import Sampling
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import FAMILIES, random_tokens
from workers.engine.sequence import Ending

ANSWERED = (Ending.MAX_TOKENS, None)
STRANGER = b"another project"


def computed(driver: Driver) -> int:
    return driver.engine.counters.prefill_tokens


def ask(driver: Driver, prompt: list[int], cache_id: str | None = None, **more: object) -> Answer:
    answer = driver.ask(prompt, cache_id, namespace=NAMESPACE, **more)  # type: ignore[arg-type]
    assert answer.outcome == ANSWERED
    return answer


@pytest.mark.trap("T1")
@pytest.mark.trap("T43")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_warm_answer_is_the_cold_one(drive: Drive, family: str) -> None:
    """Forty prompts; each hit is asserted, and so is what was computed for it."""
    driver = drive(family, blocks=600)
    for number in range(40):
        prompt = random_tokens(66 + 7 * number, seed=number)
        cold = ask(driver, prompt, max_output_tokens=4)
        before = computed(driver)
        warm = ask(driver, prompt, max_output_tokens=4)
        whole = (len(prompt) - 1) // 64 * 64
        assert (cold.reused, warm.reused) == ([0], [whole])
        assert computed(driver) - before == len(prompt) - whole
        assert warm.tokens == cold.tokens
        assert_like_oracle(driver.oracle, warm)


@pytest.mark.trap("T4")
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 192, 193])
def test_a_prompt_that_is_there_in_whole_still_gives_its_first_token(drive: Drive, length: int) -> None:
    """The last token is always computed, or there would be no logits."""
    driver = drive()
    prompt = random_tokens(length, seed=1)
    cold = ask(driver, prompt, max_output_tokens=3)
    ask(driver, [*prompt, 1, 2], max_output_tokens=1)
    before = computed(driver)
    warm = ask(driver, prompt, max_output_tokens=3)
    assert warm.tokens == cold.tokens
    assert 1 <= computed(driver) - before <= 64
    assert_like_oracle(driver.oracle, warm)


def test_a_conversation_goes_on_where_it_stopped(drive: Drive) -> None:
    """The answer's own tokens are kept too, but for the last, which was never computed."""
    driver = drive(blocks=64)
    talk = random_tokens(50, seed=1)
    for turn in range(6):
        before, known = computed(driver), (len(talk) - 1) // 64 * 64 if turn else 0
        answer = ask(driver, [*talk, 1, 2, 3], max_output_tokens=61)
        assert answer.reused == [known]
        assert computed(driver) - before == len(talk) + 3 - known
        assert_like_oracle(driver.oracle, answer)
        talk = [*talk, 1, 2, 3, *answer.tokens]


@pytest.mark.parametrize("tail_tokens", [32, 64, 128])
@pytest.mark.parametrize("cache_length", [0, 1, 64, 70, 127])
def test_a_conversation_upon_a_cache(drive: Drive, cache_length: int, tail_tokens: int) -> None:
    """Behind the cache's last tokens, from spilled tails, across every border."""
    driver = drive(blocks=64, tail_tokens=tail_tokens)
    cache_id = None
    if cache_length:
        cache_id = "cache"
        driver.build(cache_id, random_tokens(cache_length, seed=1))
    talk: list[int] = []
    for turn in range(4):
        question = random_tokens(5 + 40 * turn, seed=2 + turn)
        answer = ask(driver, [*talk, *question], cache_id, max_output_tokens=70)
        known = (cache_length + len(talk) - 1) // 64 * 64 - cache_length
        assert answer.reused == [max(0, known) if turn else 0]
        assert_like_oracle(driver.oracle, answer)
        talk += [*question, *answer.tokens]


@pytest.mark.trap("T25")
def test_the_same_prompt_twice_at_once_is_computed_once(drive: Drive) -> None:
    """The second waits for the first's KV, and reads it only when it is written."""
    driver = drive(blocks=64)
    prompt = random_tokens(500, seed=1)
    with driver.standing_still():
        twice = [driver.ask([*prompt, n], namespace=NAMESPACE, max_output_tokens=5) for n in (1, 2, 3)]
        other = driver.ask([1, 2], namespace=NAMESPACE)
    for answer in (*twice, other):
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer)
    assert [answer.reused for answer in twice] == [[0], [448], [448]]
    assert computed(driver) == 501 + 2 * 53 + 2


def test_half_of_what_is_being_computed_is_enough_for_who_needs_half(drive: Drive) -> None:
    driver = drive(blocks=64)
    shared = random_tokens(130, seed=1)
    with driver.standing_still():
        long_one = driver.ask(
            [*shared, *random_tokens(1000, seed=2)], namespace=NAMESPACE, max_output_tokens=2
        )
        short = driver.ask([*shared, 7], namespace=NAMESPACE, max_output_tokens=1, request_id="short")
    for answer in (long_one, short):
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer)
    assert short.reused == [128]
    assert driver.events[0] == "short"


@pytest.mark.trap("T26")
def test_who_waited_computes_it_when_the_first_gives_up(drive: Drive) -> None:
    """What was begun by a request that was cancelled is never found."""
    driver = drive(blocks=64)
    prompt = random_tokens(400, seed=1)
    with driver.standing_still():
        first = driver.ask(prompt, namespace=NAMESPACE, request_id="first")
        second = driver.ask(prompt, namespace=NAMESPACE)
        driver.at_step(2, lambda: driver.engine.cancel("first"))
    assert first.outcome == (Ending.CANCELLED, None)
    assert second.outcome == ANSWERED
    assert second.reused == [0]
    assert_like_oracle(driver.oracle, second)


@pytest.mark.trap("T20")
def test_a_stranger_finds_nothing(drive: Drive) -> None:
    """The same prompt in two projects shares no block, and nobody can tell that the other has it."""
    driver = drive(blocks=64)
    prompt = random_tokens(200, seed=1)
    ask(driver, prompt)
    used = driver.used_blocks()
    stranger = driver.ask(prompt, namespace=STRANGER)
    assert stranger.outcome == ANSWERED
    assert stranger.reused == [0]
    assert driver.used_blocks() == 2 * used
    driver.build("cache", prompt)
    assert driver.ask(prompt, namespace=STRANGER).outcome == ANSWERED
    private = driver.ask(prompt)
    assert private.outcome == ANSWERED
    assert private.reused == [0]


def test_who_asks_for_no_reuse_reads_nothing_and_leaves_nothing(drive: Drive) -> None:
    driver = drive(blocks=64)
    prompt = random_tokens(200, seed=1)
    assert driver.ask(prompt).outcome == ANSWERED
    assert driver.used_blocks() == 0
    ask(driver, prompt)
    used, before = driver.used_blocks(), computed(driver)
    assert driver.ask(prompt).outcome == ANSWERED
    assert (driver.used_blocks(), computed(driver) - before) == (used, 200)


class TestCaches:
    def test_two_with_a_common_beginning_store_it_once(self, drive: Drive) -> None:
        driver = drive(blocks=64, pinned_share=1.0)
        shared = random_tokens(640, seed=1)
        driver.build("one", [*shared, *random_tokens(100, seed=2)])
        before = computed(driver)
        driver.build("other", [*shared, *random_tokens(200, seed=3)])
        assert computed(driver) - before == 200
        assert driver.used_blocks() == 10 + 2 + 4  # the last tokens of each are nobody else's
        answers = [driver.ask([n], cache_id) for cache_id in ("one", "other") for n in (1, 2)]
        for answer in answers:
            assert answer.outcome == ANSWERED
            assert answer.reused == [0]
            assert_like_oracle(driver.oracle, answer)
        driver.drop("one")
        assert driver.used_blocks() == 10 + 4
        assert driver.ask([1], "other").outcome == ANSWERED

    def test_identical_ones_at_once_are_computed_once_and_held_each(self, drive: Drive) -> None:
        driver = drive(blocks=20)
        text = random_tokens(8 * 64, seed=1)
        with driver.standing_still():
            builds = [driver.start_build(name, text) for name in ("one", "two", "three")]
        assert [build.outcome for build in builds] == [(Ending.BUILT, None)] * 3
        assert computed(driver) == 512
        assert driver.used_blocks() == 8
        for name in ("one", "two"):
            driver.drop(name)
        answer = driver.ask([1], "three")
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer)

    def test_one_is_made_from_what_requests_left(self, drive: Drive) -> None:
        driver = drive(blocks=64)
        text = random_tokens(300, seed=1)
        ask(driver, [*text, 1, 2])
        before = computed(driver)
        driver.build("cache", text)
        assert computed(driver) - before == 300 - 256
        hit = ask(driver, [1, 2], "cache")
        assert_like_oracle(driver.oracle, hit)

    @pytest.mark.trap("T35")
    def test_deleted_means_gone_for_all_that_was_built_upon_it(self, drive: Drive) -> None:
        driver = drive(blocks=64)
        text = random_tokens(200, seed=1)
        driver.build("cache", text)
        question = random_tokens(100, seed=2)
        ask(driver, question, "cache")
        ask(driver, [*text, *question])
        driver.drop("cache")
        assert driver.used_blocks() == 0
        assert ask(driver, [*text, *question]).reused == [0]

    @pytest.mark.parametrize("cache_length", [20, 150])
    def test_deleted_means_gone_where_another_cache_has_its_whole_blocks(
        self, drive: Drive, cache_length: int
    ) -> None:
        driver = drive(blocks=64)
        text = random_tokens(cache_length, seed=1)
        driver.build("other", [*text[: cache_length // 64 * 64], 5, 6])
        before = driver.used_blocks()
        driver.build("cache", text)
        question = random_tokens(100, seed=2)
        ask(driver, question, "cache")
        with driver.standing_still():
            late = driver.ask(question, "cache", namespace=NAMESPACE, max_output_tokens=30)
            driver.at_step(5, lambda: driver.engine.drop("cache"))
        assert late.outcome == ANSWERED
        driver.cache_tokens.pop("cache")
        assert driver.used_blocks() == before
        assert ask(driver, [*text, *question]).reused == [cache_length // 64 * 64]

    def test_automatic_kv_makes_room_for_caches_and_requests(self, drive: Drive) -> None:
        driver = drive(blocks=20)
        for seed in range(10):
            ask(driver, random_tokens(300, seed=seed))
        assert driver.used_blocks() == 20
        driver.build("cache", random_tokens(10 * 64, seed=20))
        answer = ask(driver, random_tokens(10 * 64, seed=21), "cache")
        assert_like_oracle(driver.oracle, answer)


def test_candidates_share_what_is_there(drive: Drive) -> None:
    driver = drive(blocks=64)
    prompt = random_tokens(200, seed=1)
    ask(driver, prompt)
    samplings = [Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=seed) for seed in range(3)]
    before = computed(driver)
    answers = driver.ask_for_candidates(prompt, None, samplings, namespace=NAMESPACE, max_output_tokens=70)
    assert all(answer.outcome == ANSWERED for answer in answers)
    assert computed(driver) - before == 8
    alone = driver.ask(prompt, sampling=samplings[1], max_output_tokens=70)
    assert alone.outcome == ANSWERED
    assert answers[1].tokens == alone.tokens


@pytest.mark.trap("T27")
@pytest.mark.trap("T31")
@pytest.mark.parametrize("seed", range(4))
def test_under_pressure_every_answer_is_right(drive: Drive, seed: int) -> None:
    """Little memory, many beginnings, caches that come and go, requests that are cancelled, steps that break."""
    driver = drive(blocks=40, max_running_requests=6, tail_tokens=64, prefill_chunk_tokens=64)
    dice = random.Random(seed)
    beginnings = [random_tokens(dice.randrange(60, 300), seed=n) for n in range(3)]
    answers: list[Answer] = []
    for round_number in range(5):
        with driver.standing_still():
            for number in range(12):
                do_something(driver, dice, f"{round_number}.{number}", beginnings, answers)
    for answer in answers:
        assert answer.ending in {Ending.MAX_TOKENS, Ending.CANCELLED, Ending.PREFIX_MISSING, Ending.FAILED}
        if answer.tokens:
            assert_like_oracle(driver.oracle, answer)
    assert sum(answer.ending == Ending.MAX_TOKENS for answer in answers) > 8
    assert sum(sum(answer.reused) for answer in answers) > 500


def break_down() -> None:
    raise RuntimeError("the device is on fire")


def do_something(
    driver: Driver, dice: random.Random, name: str, beginnings: list[list[int]], answers: list[Answer]
) -> None:
    beginning, step = dice.choice(beginnings), dice.randrange(20)
    rest = random_tokens(dice.randrange(1, 60), seed=dice.randrange(10**6))
    caches = list(driver.cache_tokens)
    action = dice.choice(["build", "ask", "ask", "ask", "hit", "hit", "drop", "cancel"])
    if dice.random() < 0.03:
        driver.at_step(step, break_down)
    namespace = dice.choice([NAMESPACE, NAMESPACE, STRANGER])
    if action == "build":
        driver.start_build(name, [*beginning, *rest])
    elif action == "drop" and caches:
        gone = dice.choice(caches)
        driver.at_step(step, lambda: driver.engine.drop(gone))
    else:
        cache_id = dice.choice(caches) if caches and action == "hit" else None
        prompt = rest if cache_id else [*beginning, *rest]
        answer = driver.ask(
            prompt,
            cache_id,
            request_id=name,
            max_output_tokens=dice.randrange(1, 90),
            namespace=NAMESPACE if cache_id else namespace,
        )
        answers.append(answer)
        if action == "cancel":
            driver.at_step(step, lambda: driver.engine.cancel(name))
