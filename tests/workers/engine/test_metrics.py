"""What the engine tells of itself is what it did, to the token."""

import time

import pytest

from core.metrics import Metrics
from core.sampling import Sampling
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Driver
from tests.workers.engine.tiny import random_tokens
from workers.engine.engine import Engine
from workers.engine.kv_tier import KvTier
from workers.engine.sequence import Ending

BLOCK_BYTES = 64 * 2 * 2 * 2 * 16 * 4  # of the tiny llama: tokens, K and V, layers, heads, numbers, float32
FIRST_TOKEN = "headstart_time_to_first_token_seconds"


class Told:
    """The metrics of one engine from now on."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.metrics = Metrics()
        driver.engine.report_to(self.metrics)

    def value(self, name: str, **labels: str) -> float:
        """Of all that was done so far; 0 where there is no such series."""
        self._driver.call(self._driver.engine._metrics.tell)
        return self.metrics.registry.get_sample_value(name, labels) or 0

    def prompts(self) -> tuple[float, float, float, float]:
        """Computed, explicit and implicit tokens, and those that were skipped."""
        sources = ("computed", "explicit", "implicit")
        return (
            *(self.value("headstart_prompt_tokens_total", source=source) for source in sources),
            self.value("headstart_prefill_tokens_skipped_total"),
        )  # type: ignore[return-value]

    def forwarded(self, *work: str) -> float:
        return sum(self.value("headstart_prefill_tokens_total", work=each) for each in work)

    def first_tokens(self) -> dict[tuple[str, str], float]:
        """How many requests of each kind and tier got their first token."""
        self._driver.used_blocks()
        return {
            (sample.labels["kind"], sample.labels["tier"]): sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"{FIRST_TOKEN}_count"
        }

    def bytes(self, kind: str) -> float:
        return self.value("headstart_kv_bytes", tier="device", kind=kind)


def ask(
    driver: Driver, prompt: list[int], cache_id: str | None = None, namespace: bytes | None = NAMESPACE
) -> None:
    answer = driver.ask(prompt, cache_id, namespace=namespace, max_output_tokens=2)
    assert answer.outcome == (Ending.MAX_TOKENS, None)


def test_cold_explicit_and_implicit_tokens(drive: Drive) -> None:
    driver = drive(blocks=64)
    told = Told(driver)
    prompt = random_tokens(200, seed=1)
    ask(driver, prompt)
    assert told.prompts() == (200, 0, 0, 0)
    ask(driver, prompt)
    assert told.prompts() == (200 + 8, 0, 192, 192)
    driver.build("cache", random_tokens(130, seed=2))
    ask(driver, random_tokens(5, seed=3), "cache")
    assert told.prompts() == (208 + 5, 130, 192, 192 + 130)
    assert told.first_tokens() == {("cold", "none"): 1, ("implicit", "device"): 1, ("explicit", "device"): 1}
    assert told.forwarded("build") == 130
    assert told.forwarded("prompt", "build") == driver.engine.counters.prefill_tokens


def test_a_cache_and_what_was_found_behind_it(drive: Drive) -> None:
    driver = drive(blocks=64)
    driver.build("cache", random_tokens(128, seed=1))
    told = Told(driver)
    for _ in range(2):
        ask(driver, random_tokens(200, seed=2), "cache")
    assert told.prompts() == (200 + 8, 2 * 128, 192, 2 * 128 + 192)
    assert told.first_tokens() == {("explicit", "device"): 2}


def test_what_is_told_as_skipped_was_not_forwarded(drive: Drive) -> None:
    """T43: matched is skipped, whatever befalls a request on its way: a cache, a conversation, candidates, a long wait."""
    driver = drive(blocks=96, tail_tokens=64)
    driver.build("cache", random_tokens(150, seed=1))
    told, asked = Told(driver), 0
    for number in range(12):
        prompt, cache_id = random_tokens(40 * number + 1, seed=number % 3), "cache" if number % 2 else None
        with driver.standing_still():
            answers = [
                driver.ask(prompt, cache_id, namespace=NAMESPACE, max_output_tokens=3) for _ in range(2)
            ]
            answers += driver.ask_for_candidates(
                prompt,
                cache_id,
                [Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=seed) for seed in range(3)],
                namespace=NAMESPACE,
                max_output_tokens=3,
            )
        assert {answer.outcome for answer in answers} == {(Ending.MAX_TOKENS, None)}
        asked += 3 * len(answers[0].prompt)
    computed, explicit, implicit, skipped = told.prompts()
    assert computed == told.forwarded("prompt", "build", "rebuild") > 0
    assert computed + explicit + implicit == asked
    assert skipped == asked - computed
    assert explicit == 6 * 3 * 150
    assert implicit > 0
    assert sum(told.first_tokens().values()) == 12 * 3


def test_a_request_that_is_refused_or_cancelled_early_has_skipped_nothing(drive: Drive) -> None:
    driver = drive(blocks=20)
    driver.build("cache", random_tokens(128, seed=1))
    told = Told(driver)
    driver.at_step(1, lambda: driver.engine.cancel("late"))
    late = driver.ask(random_tokens(500, seed=2), "cache", request_id="late")
    refused = driver.ask(random_tokens(5000, seed=3), "cache")
    assert (late.ending, refused.ending) == (Ending.CANCELLED, Ending.FAILED)
    assert told.prompts() == (0, 0, 0, 0)
    assert told.first_tokens() == {}
    assert told.forwarded("prompt") == 200


def test_a_rebuild_is_not_skipped_for_the_first_who_reads_it(drive: Drive) -> None:
    """T43: what was computed again is told as explicit, and as skipped from the second reader on."""
    driver = drive(blocks=64)
    told = Told(driver)
    with driver.standing_still():
        driver.start_build("cache", random_tokens(130, seed=1), is_rebuild=True)
        answers = [driver.ask(random_tokens(5, seed=n), "cache", max_output_tokens=1) for n in range(3)]
    assert {answer.ending for answer in answers} == {Ending.MAX_TOKENS}
    assert told.prompts() == (15, 3 * 130, 0, 2 * 130)
    assert told.forwarded("rebuild") == 130
    assert sum(len(answer.prompt) for answer in answers) - told.prompts()[3] == told.forwarded(
        "prompt", "rebuild"
    )
    ask(driver, [7], "cache")
    assert told.prompts() == (16, 4 * 130, 0, 3 * 130)
    assert told.first_tokens() == {("explicit", "rebuilt"): 3, ("explicit", "device"): 1}
    assert told.value("headstart_rebuilds_total", reason="asked") == 1


def test_a_rebuild_in_the_background_makes_nobody_wait(drive: Drive) -> None:
    driver = drive(blocks=64)
    told = Told(driver)
    outcome = driver.start_build("cache", random_tokens(100, seed=1), is_rebuild=True, is_urgent=False)
    assert outcome.ending is Ending.BUILT
    assert told.value("headstart_rebuilds_total", reason="background") == 1
    ask(driver, [7], "cache")
    assert told.first_tokens() == {("explicit", "device"): 1}
    assert told.prompts() == (1, 100, 0, 0)


def test_a_rebuild_that_finds_everything_has_computed_nothing(drive: Drive) -> None:
    driver = drive(blocks=64)
    tokens = random_tokens(128, seed=1)
    driver.build("one", tokens)
    told = Told(driver)
    assert driver.start_build("other", tokens, is_rebuild=True).ending is Ending.BUILT
    assert told.value("headstart_rebuilds_total", reason="asked") == 0
    ask(driver, [7], "other")
    assert told.prompts() == (1, 128, 0, 128)


def test_memory_by_what_it_holds(drive: Drive) -> None:
    driver = drive(blocks=40)
    told = Told(driver)
    driver.build("cache", random_tokens(130, seed=1))  # two blocks, and one for the last two tokens
    ask(driver, random_tokens(64 * 5 + 1, seed=2))
    assert told.bytes("pinned") == 3 * BLOCK_BYTES
    assert told.bytes("automatic") == 5 * BLOCK_BYTES
    assert told.bytes("free") == 32 * BLOCK_BYTES
    assert told.value("headstart_kv_pin_budget_bytes") == 20 * BLOCK_BYTES
    ended: list[float] = []

    def drop() -> None:
        driver.drop("cache")

    driver.at_step(0, drop)
    driver.at_step(1, lambda: ended.append(seen(told, "headstart_kv_bytes", tier="device", kind="ended")))
    ask(driver, random_tokens(3, seed=3), "cache", namespace=None)
    assert ended == [2 * BLOCK_BYTES]
    assert told.bytes("ended") == told.bytes("pinned") == 0


def test_evictions(drive: Drive) -> None:
    driver = drive(blocks=16)
    told = Told(driver)
    ask(driver, random_tokens(64 * 10 + 1, seed=1))
    assert told.value("headstart_kv_evicted_tokens_total", tier="device") == 0
    ask(driver, random_tokens(64 * 8 + 1, seed=2))
    assert told.value("headstart_kv_evicted_tokens_total", tier="device") == 2 * 64


def test_steps_requests_and_builds(drive: Drive) -> None:
    driver = drive(blocks=64)
    told = Told(driver)
    before = driver.engine.counters.steps
    looks: list[tuple[float, float, float]] = []

    def look() -> None:
        states = (seen(told, "headstart_requests", state=state) for state in ("running", "waiting"))
        looks.append((*states, seen(told, "headstart_builds")))  # type: ignore[arg-type]

    driver.at_step(0, look)
    with driver.standing_still():
        driver.start_build("cache", random_tokens(64, seed=1))
        answers = [driver.ask([n], max_output_tokens=3) for n in range(2)]
        answers.append(driver.ask([5], "cache", max_output_tokens=1))
    assert {answer.ending for answer in answers} == {Ending.MAX_TOKENS}
    assert looks == [(2, 1, 1)]
    steps = driver.engine.counters.steps - before
    for name in ("headstart_step_seconds", "headstart_step_decode_rows", "headstart_step_prefill_tokens"):
        assert told.value(f"{name}_count") == steps
    assert told.value("headstart_step_prefill_tokens_sum") == 64 + 2 + 1
    assert told.value("headstart_step_decode_rows_sum") == 2 * 2
    assert 0 < told.value("headstart_step_seconds_sum") < 60
    assert told.value("headstart_requests", state="running") == told.value("headstart_builds") == 0


def test_time_to_the_first_token_begins_where_the_request_was_taken(drive: Drive) -> None:
    driver = drive()
    told = Told(driver)
    with driver.standing_still():
        answer = driver.ask([1, 2, 3], max_output_tokens=4)
        time.sleep(0.2)
    assert answer.ending is Ending.MAX_TOKENS
    labels = {"kind": "cold", "tier": KvTier.NONE}
    assert told.value(f"{FIRST_TOKEN}_count", **labels) == 1
    assert 0.2 <= told.value(f"{FIRST_TOKEN}_sum", **labels) < 30


def test_each_engine_has_metrics_of_its_own(drive: Drive) -> None:
    first, second = drive(), drive()
    told = [Told(first), Told(second)]
    ask(first, [1, 2, 3])
    assert [each.prompts()[0] for each in told] == [3, 0]


def test_a_step_costs_next_to_nothing_more(drive: Drive) -> None:
    """Telling of a step takes microseconds, where the step itself takes milliseconds."""
    driver = drive()
    engine: Engine = driver.engine
    begun = time.perf_counter()
    for _ in range(1000):
        engine._metrics.step(8, 0, 0.01)
    assert (time.perf_counter() - begun) / 1000 < 0.001


def seen(told: Told, name: str, **labels: str) -> float:
    """What a scrape sees in the midst of a step."""
    value = told.metrics.registry.get_sample_value(name, labels)
    if value is None:
        pytest.fail(f"{name} has no series {labels}")
    return value
