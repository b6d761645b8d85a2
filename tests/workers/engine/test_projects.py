"""One project's load changes nothing of another's: neither its answers nor the counts of its caches, also where memory is scarce."""

import random
from dataclasses import dataclass, field

import pytest

from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import Answer, Driver, assert_like_oracle
from tests.workers.engine.tiny import random_tokens
from workers.engine.sequence import Ending
from workers.engine.step import Step

OURS, THEIRS = b"our project", b"their project"
ANSWERED = (Ending.MAX_TOKENS, None)
TEXT = random_tokens(300, seed=1)


def ask_all(driver: Driver) -> list[Answer]:
    """What we ask, one after the other: of two caches that share a beginning, and a conversation without one."""
    for name, length in (("long", 290), ("short", 150)):
        assert driver.start_build(name, TEXT[:length], namespace=OURS).ending == Ending.BUILT
    answers = []
    for number in range(12):
        prompt, cache_id = (
            random_tokens(10 + 20 * (number % 3), seed=number),
            ("long", "short", None)[number % 3],
        )
        prompt = prompt if cache_id else [*TEXT[:200], *prompt]
        answers.append(driver.ask(prompt, cache_id, namespace=OURS, max_output_tokens=12))
        assert answers[-1].outcome == ANSWERED
    return answers


@dataclass
class Neighbour:
    """Sends whatever we send and much more, a few requests at a time, for as long as it is told to."""

    driver: Driver
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    asked: list[Answer] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    is_over: bool = False

    def go_on(self, _: Step) -> None:
        if not self.is_over and sum(not answer.ended.is_set() for answer in self.asked) < 4:
            rest = random_tokens(self.dice.randrange(1, 250), seed=self.dice.randrange(10**6))
            prompt = [*TEXT[: self.dice.choice([0, 100, 200, 300])], *rest]
            self.asked.append(self.driver.ask(prompt, namespace=THEIRS, max_output_tokens=20))
            if self.dice.random() < 0.1:
                self.caches.append(f"their cache {len(self.asked)}")
                self.driver.start_build(self.caches[-1], [*TEXT[:200], *rest[:30]], namespace=THEIRS)
            if len(self.caches) > 1:
                self.driver.drop(self.caches.pop(0))


@pytest.mark.trap("T20")
@pytest.mark.parametrize("blocks", [24, 200])
def test_with_a_neighbours_load_and_without_it_all_is_the_same(drive: Drive, blocks: int) -> None:
    """Implicit counts may be less under pressure, since automatic KV gives way; what a cache is promised may not."""
    alone = ask_all(drive(blocks=blocks))
    driver = drive(blocks=blocks)
    neighbour = Neighbour(driver)
    driver.model.before.append(neighbour.go_on)
    loaded = ask_all(driver)
    neighbour.is_over = True
    assert len(neighbour.asked) > 20
    for ours, theirs in zip(alone, loaded, strict=True):
        assert ours.prompt == theirs.prompt
        assert ours.tokens == theirs.tokens
        assert theirs.reused[0] <= ours.reused[0]
        assert_like_oracle(driver.oracle, theirs)
    for answer in neighbour.asked:
        assert answer.ending in {Ending.MAX_TOKENS, Ending.FAILED}
        if answer.tokens:
            assert_like_oracle(driver.oracle, answer)
    if blocks == 24:
        assert driver.engine._tree.evicted_block_count > 20


@pytest.mark.trap("T20")
def test_no_row_reads_a_segment_of_another_project(drive: Drive) -> None:
    """Seen where it counts: in every step, each range of the arena that a row reads belongs to its own project's nodes."""
    driver = drive(blocks=60)
    seen: set[bytes] = set()
    tree, scheduler = driver.engine._tree, driver.engine._scheduler

    def look(step: Step) -> None:
        roots = {driver.engine._root_key(name): name for name in (OURS, THEIRS)}
        owner: dict[int, bytes] = {}  # of each token in the arena
        for node in tree._alive:
            if node.root.is_shared and node.segment is not None:
                for start, stop in node.segment.filled():
                    owner.update(dict.fromkeys(range(start, stop), roots[node.root.key]))
        by_seat = {sequence.seat: sequence.namespace for sequence in scheduler._running}
        for row in step.rows:
            mine = by_seat.get(row.seat)
            if mine is not None:
                read = {owner.get(at) for start, stop in row.filled() for at in range(start, stop)}
                assert read <= {mine, None}
                seen.update(read - {None})  # type: ignore[arg-type]

    driver.model.before.append(look)
    for name, namespace in (("ours", OURS), ("theirs", THEIRS)):
        assert driver.start_build(name, TEXT[:200], namespace=namespace).ending == Ending.BUILT
    with driver.standing_still():
        answers = [
            driver.ask([*TEXT[: 40 * n], n], None, namespace=namespace, max_output_tokens=30)
            for n in range(1, 8)
            for namespace in (OURS, THEIRS)
        ]
        answers += [
            driver.ask([n], name, namespace=namespace, max_output_tokens=30)
            for n in range(3)
            for name, namespace in (("ours", OURS), ("theirs", THEIRS))
        ]
    for answer in answers:
        assert answer.outcome == ANSWERED
        assert_like_oracle(driver.oracle, answer)
    assert seen == {OURS, THEIRS}


@pytest.mark.trap("T20")
def test_what_only_a_neighbour_has_sent_is_found_by_nobody_else(drive: Drive) -> None:
    """Or the time of a first answer, and its count, would betray what others ask."""
    driver = drive()
    for _ in range(2):
        assert driver.ask(TEXT, namespace=THEIRS).outcome == ANSWERED
    before = driver.engine.counters.prefill_tokens
    ours = driver.ask(TEXT, namespace=OURS)
    assert (ours.outcome, ours.reused) == (ANSWERED, [0])
    assert driver.engine.counters.prefill_tokens - before == len(TEXT)
    with driver.standing_still():  # nor is a prompt waited for that another project computes just now
        fresh = random_tokens(300, seed=9)
        both = [driver.ask(fresh, namespace=namespace) for namespace in (THEIRS, OURS)]
    assert [answer.outcome for answer in both] == [ANSWERED] * 2
    assert [answer.reused for answer in both] == [[0], [0]]
