"""A walk through what may happen to KV in all its tiers: the engine's own scheduler, room, tree and residence, without a model.

Requests and caches come and go, reads and writes are done and heard of at moments that the dice choose, tiers fail, and the
process ends and begins anew on the files that the one before has left.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.trees.expectations import common_blocks
from bench.trees.marks import marks_of
from bench.trees.shelf import Shelf
from bench.trees.tier_checks import check_all
from bench.trees.violation import require
from bench.trees.wood import MINE, THEIRS, Tokens
from bench.trees.works import Works, marks_behind
from core.errors import AppError
from core.sampling import Sampling
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.compaction import compact_one
from workers.engine.sequence import Build, Ending, Sequence

OWNERS = (MINE, THEIRS)
_GREEDY = Sampling(temperature=0, top_p=1, top_k=0, seed=0)
_OLDEST_SECONDS = 100.0
_MOST_CACHES, _MOST_REQUESTS = 7, 8
_VOCABULARY = 320
_MOST_LAST_TURNS = 2_000


@dataclass(slots=True, eq=False)
class Cache:
    """owner: an index of OWNERS. is_promised: it was built once."""

    name: str
    text: Tokens
    owner: int
    is_promised: bool = False


class TierWalk:
    """step() does one thing, check() proves everything, finish() ends all that is under way."""

    def __init__(self, seed: str) -> None:
        self._dice = dice = random.Random(seed)  # noqa: S311 - no secrets
        self._blocks = dice.randrange(30, 90)
        has_host, has_disk = dice.choice([(True, False), (False, True), (True, True)])
        self._host_blocks = dice.randrange(8, 90) if has_host else 0
        faults = dice.choice([0.0, 0.03, 0.2])
        self._shelf = Shelf(dice, dice.randrange(20, 300), faults) if has_disk else None
        self._caches: dict[str, Cache] = {}  # those that live
        self._texts: dict[str, Cache] = {}  # those that are deleted, too
        self._owners: dict[str, int] = {}  # by request
        self._builds: dict[str, Build] = {}
        self._number = len(OWNERS)
        self._works = self._start()
        self._parts = {
            (count, seed): tuple(random.Random(f"{count}/{seed}").choices(range(_VOCABULARY), k=count * BLOCK_TOKENS))  # noqa: S311
            for count in (1, 2, 3)
            for seed in range(4)
        }  # fmt: skip
        self._acts: list[Callable[[], object]] = [
            *[self._turn] * 12, *[self._ask] * 5, *[self._make] * 2, self._make_again, self._drop, self._cancel,
            *[self._work] * 6, *[self._deliver] * 6, self._evict, self._now_and_then,
        ]  # fmt: skip

    def step(self) -> None:
        self._dice.choice(self._acts)()

    def check(self) -> None:
        check_all(self._works, list(self._builds.values()), OWNERS)

    def finish(self) -> None:
        works, shelf = self._works, self._shelf
        works.token_seconds = None
        if shelf is not None:
            shelf.fault_share = 0.0
        works.residence.retry()
        self._let_all_end()
        self.check()
        for name in list(self._caches):
            self._drop_cache(name)
        self._let_all_end()
        works.tree.forget_made_before(works.now + 1)
        works.residence.retry()
        self._let_all_end()
        self.check()
        require(not works.segments.alive, "blocks of the arena are taken that nobody holds")
        require(works.host is None or not works.host.segments.alive, "host memory is taken that nobody holds")
        require(shelf is None or not shelf.kept, "a file is left of what is deleted")

    def _let_all_end(self) -> None:
        works = self._works
        for _ in range(_MOST_LAST_TURNS):
            is_busy = [works.reader.work(), works.writer.work(), works.deliver(), works.turn()]
            if not any(is_busy) and works.moves.count == 0:
                break
        require(not works.open and not self._builds, "somebody waits for ever")
        require(works.moves.count == 0, "a move never ends")

    def _start(self) -> Works:
        return Works(
            self._blocks, self._host_blocks, self._shelf, self._marks_for, self._draw, self._perhaps_work
        )

    def _turn(self) -> None:
        self._works.turn()

    def _ask(self) -> None:
        if len(self._works.open) >= _MOST_REQUESTS:
            return
        dice, self._number = self._dice, self._number + 1
        name = f"request {self._number}"
        cache = dice.choice([None, None, *self._caches.values(), *self._caches.values()])
        owner = dice.randrange(len(OWNERS)) if cache is None else cache.owner
        is_nobodys = dice.random() < 0.2
        self._owners[name] = self._number if is_nobodys else owner
        text, length = self._draw_text(), dice.randrange(1, 40)
        if cache is not None and dice.random() < 0.5:
            text = text[: dice.randrange(1, BLOCK_TOKENS)]
        if cache is None and dice.random() < 0.5:
            text = text[: dice.randrange(1, len(text))]
        sequences = [
            Sequence(
                request_id=name,
                token_ids=list(text),
                cache_id=None if cache is None else cache.name,
                sampling=_GREEDY,
                max_output_tokens=dice.choice([length, length, 150]),
                stop_token_ids=frozenset(),
                on_token=lambda *_: False,
                on_end=lambda *_: None,
                namespace=None if is_nobodys else OWNERS[owner],
            )
            for _ in range(dice.choice([1, 1, 1, 2]))
        ]
        for each in sequences:
            each.max_output_tokens = sequences[0].max_output_tokens
        sequences[0].siblings = sequences[1:]
        self._works.ask(sequences[0])

    def _make(self) -> None:
        """A new cache."""
        if len(self._caches) >= _MOST_CACHES:
            return
        self._number += 1
        text = self._draw_text()
        ends = [(), (), text[:1], text[: self._dice.randrange(1, BLOCK_TOKENS)]]
        text = (*text, *self._dice.choice(ends))[self._dice.choice([0, 0, BLOCK_TOKENS]) :]
        if text:
            cache = Cache(f"cache {self._number}", text, self._dice.randrange(len(OWNERS)))
            self._caches[cache.name] = self._texts[cache.name] = cache
            self._build(cache, is_rebuild=False)

    def _make_again(self) -> None:
        """Whoever asks for a cache that is lost has it computed again."""
        built = {pin.cache_id for pin in self._works.scheduler.pins}
        lost = [c for c in self._caches.values() if c.name not in built and c.name not in self._builds]
        if lost:
            self._build(self._dice.choice(lost), is_rebuild=True)

    def _build(self, cache: Cache, *, is_rebuild: bool) -> None:
        def end(ending: Ending, _: AppError | None) -> None:
            self._builds.pop(cache.name, None)
            if ending is Ending.BUILT:
                cache.is_promised = True
                self._works.pieces += [build.piece] if build.piece is not None else []
            elif not is_rebuild:
                self._caches.pop(cache.name, None)

        is_urgent = self._dice.random() < 0.5
        build = Build(cache.name, OWNERS[cache.owner], cache.text, [end], is_rebuild, is_urgent)
        self._builds[cache.name] = build
        self._works.scheduler.add_build(build)

    def _drop(self) -> None:
        if self._caches:
            self._drop_cache(self._dice.choice(list(self._caches)))

    def _drop_cache(self, name: str) -> None:
        """A cache ends: its content must be gone, as far as no other cache has it and nobody waits for it."""
        cache, works = self._caches.pop(name), self._works
        is_waited_for = any(s.cache_id == name and s.node is None for s in works.open)
        works.scheduler.drop(name)
        if is_waited_for or name in self._builds or not cache.is_promised:
            return
        others = [each.text for each in self._caches.values() if each.owner == cache.owner]
        waiting = [s.cache_id for s in works.open if s.cache_id is not None and s.node is None]
        others += [self._texts[each].text for each in waiting if self._texts[each].owner == cache.owner]
        kept = max((common_blocks(cache.text, each) for each in others), default=0)
        found = works.tree.match(works.tree.top(OWNERS[cache.owner]), cache.text).node
        require(found.end <= kept * BLOCK_TOKENS, "what was deleted is still found")

    def _cancel(self) -> None:
        names = [s.request_id for s in self._works.open] + list(self._builds)
        if names:
            self._works.scheduler.cancel(self._dice.choice(names), self._works.end)

    def _work(self) -> None:
        self._dice.choice([self._works.reader, self._works.writer]).work()

    def _perhaps_work(self) -> None:
        if self._dice.random() < 0.3:
            self._work()

    def _deliver(self) -> None:
        self._works.deliver()

    def _evict(self) -> None:
        self._works.segments.make_room(self._dice.randrange(1, 20))

    def _now_and_then(self) -> None:
        works = self._works
        self._dice.choice(
            [
                lambda: compact_one(works.tree, works.segments, most_runs=1),
                works.residence.retry,
                self._age,
                self._change_speed,
                self._restart,
            ]
        )()

    def _age(self) -> None:
        self._works.now += self._dice.randrange(1, 30)
        self._works.tree.forget_older_than(_OLDEST_SECONDS)

    def _change_speed(self) -> None:
        """How long computing takes: never measured, or longer or shorter than any read."""
        self._works.token_seconds = self._dice.choice([None, None, 1e9, 0.0])

    def _restart(self) -> None:
        """Caches may be deleted before the next process asks for them."""
        for _ in range(self._dice.randrange(3)):
            self._work()
        self._works.stop()
        self.check()
        now = self._works.now
        self._works = self._start()
        self._works.now = now + 1
        for cache in list(self._caches.values()):
            if self._dice.random() < 0.2:
                del self._caches[cache.name]
            else:
                self._build(cache, is_rebuild=True)
        self._works.awaits_claims = True

    def _draw_text(self) -> Tokens:
        """Few beginnings, many ends."""
        text: Tokens = ()
        for _ in range(self._dice.randrange(1, 5)):
            text += self._parts[self._dice.randrange(1, 4), self._dice.randrange(4)]
        return text

    def _draw(self) -> int:
        return self._dice.randrange(_VOCABULARY)

    def _marks_for(self, item: Build | Sequence) -> torch.Tensor:
        if isinstance(item, Build):
            return marks_of(item.token_ids, self._texts[item.cache_id].owner)
        cache = None if item.cache_id is None else self._texts[item.cache_id]
        prefix, owner = ((), 0) if cache is None else (cache.text, cache.owner)
        return marks_behind(prefix, owner, tuple(item.token_ids), self._owners[item.request_id])
