"""The same answer with a cache, without one, and from transformers by itself: tokens and logits, in float32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from prompting.format import PromptFormat
from prompting.messages import Message
from tests.tiny_models import built_in_folder
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import FAMILIES, Oracle, random_tokens

HANDBOOK = Path(__file__).parents[3] / "examples" / "handbook.txt"
# Chunks are 100 tokens, tails 128: a suffix beyond 64 goes to the arena, one beyond 100 takes several chunks.
PREFIX_LENGTHS = (1, 63, 64, 65, 127, 128, 129, 130)
SUFFIX_LENGTHS = (1, 2, 13, 63, 64, 65, 130, 301)


@pytest.mark.trap("T7")
@pytest.mark.trap("T31")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prefix_length", PREFIX_LENGTHS)
def test_every_suffix_length_behind_every_prefix_length(
    drive: Drive, family: str, prefix_length: int
) -> None:
    driver = drive(family)
    driver.build("cache", random_tokens(prefix_length, seed=prefix_length))
    before = driver.engine.counters.prefill_tokens
    with driver.standing_still():
        hits = [driver.ask(random_tokens(n, seed=1000 + n), "cache") for n in SUFFIX_LENGTHS]
    assert all(hit.outcome for hit in hits)
    assert driver.engine.counters.prefill_tokens - before == sum(SUFFIX_LENGTHS)
    with driver.standing_still():
        misses = [driver.ask(hit.prompt) for hit in hits]
    assert_answers_alike(driver, hits, misses)


def test_one_request_at_a_time(drive: Drive) -> None:
    driver = drive()
    driver.build("cache", random_tokens(65, seed=1))
    hits = []
    for length in SUFFIX_LENGTHS:
        hits.append(driver.ask(random_tokens(length, seed=length), "cache", max_output_tokens=3))
        assert hits[-1].outcome
    assert_answers_alike(driver, hits, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_remainder_of_a_block_across_a_boundary(drive: Drive, family: str) -> None:
    driver = drive(family, blocks=700, prefill_chunk_tokens=300)
    lengths = range(190, 260)  # around 192 and 256
    with driver.standing_still():
        for length in lengths:
            driver.start_build(f"cache {length}", random_tokens(length, seed=length))
    hits = [driver.ask([5, length, 7], f"cache {length}", max_output_tokens=3) for length in lengths[::2]]
    hits += [driver.ask([length], f"cache {length}", max_output_tokens=3) for length in lengths[1::2]]
    assert all(hit.outcome for hit in hits)
    assert driver.engine.counters.prefill_tokens == sum(lengths) + 4 * len(lengths) // 2
    assert_answers_alike(driver, hits, [])


@pytest.mark.trap("T10")
@pytest.mark.trap("T31")
@pytest.mark.parametrize("family", FAMILIES)
def test_eight_concurrent_requests_on_one_cache_and_on_several(drive: Drive, family: str) -> None:
    driver = drive(family, blocks=256)
    for length in (65, 128, 200):
        driver.build(f"cache {length}", random_tokens(length, seed=length))
    before = driver.engine.counters.prefill_tokens
    with driver.standing_still():
        one = [
            driver.ask(random_tokens(n, seed=n), "cache 200", max_output_tokens=4 + n % 7)
            for n in SUFFIX_LENGTHS
        ]
    assert all(answer.outcome for answer in one)
    with driver.standing_still():
        several = [
            driver.ask(random_tokens(n, seed=-n), cache_id, max_output_tokens=9 - n % 5)
            for n, cache_id in zip(
                SUFFIX_LENGTHS, ["cache 65", "cache 128", "cache 200", None] * 2, strict=True
            )
        ]
    assert all(answer.outcome for answer in several)
    assert driver.engine.counters.prefill_tokens - before == 2 * sum(SUFFIX_LENGTHS)
    assert_answers_alike(driver, one + several, [])


def test_more_requests_than_seats(drive: Drive) -> None:
    driver = drive(max_running_requests=3)
    driver.build("cache", random_tokens(100, seed=1))
    with driver.standing_still():
        hits = [
            driver.ask(random_tokens(n, seed=n), "cache", max_output_tokens=1 + n % 9) for n in range(1, 21)
        ]
    assert_answers_alike(driver, hits, [])


@pytest.mark.parametrize("output_tokens", [31, 32, 33, 100])
def test_answers_longer_than_a_tail_are_moved_on_and_read_where_they_lie(
    drive: Drive, output_tokens: int
) -> None:
    driver = drive(tail_tokens=32)
    driver.build("cache", random_tokens(70, seed=1))
    with driver.standing_still():
        answers = [
            driver.ask(random_tokens(1, seed=2), "cache", max_output_tokens=output_tokens),
            driver.ask(random_tokens(15, seed=3), "cache", max_output_tokens=output_tokens),
            driver.ask(random_tokens(45, seed=4), "cache", max_output_tokens=output_tokens),
            driver.ask(random_tokens(16, seed=5), max_output_tokens=output_tokens),
        ]
    assert_answers_alike(driver, answers, [])
    assert all(len(answer.tokens) == output_tokens for answer in answers)


def test_a_greedy_answer_is_the_one_of_whole_forwards_in_a_loop(drive: Drive) -> None:
    driver = drive("qwen3")
    driver.build("cache", random_tokens(90, seed=1))
    answer = driver.ask(random_tokens(10, seed=2), "cache", max_output_tokens=20)
    assert answer.outcome
    assert answer.tokens == driver.oracle.greedy(answer.prompt, 20)


def test_chunks_of_one_token_are_as_good_as_any(drive: Drive) -> None:
    """A chunk of one prompt token is computed among the decode rows."""
    driver = drive(prefill_chunk_tokens=1)
    with driver.standing_still():
        driver.start_build("cache", random_tokens(66, seed=1))
        answers = [driver.ask(random_tokens(9, seed=n), "cache", max_output_tokens=5) for n in range(3)]
    assert_answers_alike(driver, answers, [])


def test_a_cache_in_many_pieces_answers_like_one_in_a_single_run(drive: Drive) -> None:
    driver = drive(blocks=32, pinned_share=1.0)
    for number in range(32):
        driver.build(f"block {number}", random_tokens(64, seed=number))
    for number in range(1, 32, 2):
        driver.drop(f"block {number}")
    driver.build("cache", random_tokens(600, seed=100))

    def most_runs() -> int:
        return driver.engine.call(lambda segments: max(len(s.runs) for s in segments.alive)).result()

    assert most_runs() == 9
    with driver.standing_still():
        answers = [driver.ask(random_tokens(n, seed=n), "cache") for n in (1, 40, 200)]
    assert_answers_alike(driver, answers, [])


@pytest.fixture(scope="module")
def built_in() -> Iterator[Driver]:
    """The model that comes along, in float32."""
    folder = built_in_folder()
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    oracle = Oracle(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    driver = Driver(module, oracle, prefill_chunk_tokens=128, tail_tokens=64)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def built_in_format() -> PromptFormat:
    return PromptFormat.load(built_in_folder())


def test_the_built_in_model_answers_as_transformers_does(
    built_in: Driver, built_in_format: PromptFormat
) -> None:
    cached = [Message("system", HANDBOOK.read_text(encoding="utf-8")[:1000])]
    questions = ["What is this?", "Repeat the first sentence, then count to ten."]
    prefix = built_in_format.prefix(cached)
    suffixes = [
        built_in_format.suffix(prefix.text, cached, [Message("user", question)]) for question in questions
    ]
    before = built_in.engine.counters.prefill_tokens
    built_in.build("cache", prefix.token_ids)
    with built_in.standing_still():
        hits = [built_in.ask(suffix, "cache", max_output_tokens=8) for suffix in suffixes]
    assert all(hit.outcome for hit in hits)
    assert len(prefix.token_ids) > 200
    computed = built_in.engine.counters.prefill_tokens - before
    assert computed == len(prefix.token_ids) + sum(map(len, suffixes))
    assert_answers_alike(built_in, hits, [built_in.ask(hits[0].prompt, max_output_tokens=8)])


@pytest.mark.long
def test_the_built_in_model_at_the_borders_of_blocks_eight_requests_at_once(
    built_in: Driver, built_in_format: PromptFormat
) -> None:
    text = built_in_format.encode(HANDBOOK.read_text(encoding="utf-8"))
    for length in (63, 64, 65, 129):
        built_in.build(f"cache {length}", text[:length])
    before = built_in.engine.counters.prefill_tokens
    with built_in.standing_still():
        hits = [
            built_in.ask(text[length : length + count], f"cache {length}", max_output_tokens=6)
            for length in (63, 64, 65, 129)
            for count in (1, 64)
        ]
    assert all(hit.outcome for hit in hits)
    assert built_in.engine.counters.prefill_tokens - before == 4 * (1 + 64)
    with built_in.standing_still():
        misses = [built_in.ask(hit.prompt, max_output_tokens=6) for hit in hits]
    assert_answers_alike(built_in, hits, misses)


def assert_answers_alike(driver: Driver, hits: list[Answer], misses: list[Answer]) -> None:
    """All answers are the oracle's, and nearly all of their tokens could be compared."""
    answers = [*hits, *misses]
    assert all(answer.outcome for answer in answers)
    is_clear = {answer: assert_like_oracle(driver.oracle, answer) for answer in answers}
    assert sum(map(sum, is_clear.values())) > 0.95 * sum(len(answer.tokens) for answer in answers)
    for hit, miss in zip(hits, misses, strict=False):
        # Behind a choice between two that are as good, answers may go on differently.
        until = [*is_clear[hit], False].index(False)
        assert hit.prompt == miss.prompt
        assert hit.tokens[:until] == miss.tokens[:until]
