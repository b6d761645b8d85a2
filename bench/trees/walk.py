"""A walk through what may happen to a prefix tree and its pool, in any order, beside a model of what must hold.

The model is three lists: who reads, who computes, what is pinned. From them follow every reader and pin count, which blocks
are taken, what can be found, and what stands in the arena for it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.trees.expectations import check_counts, common_blocks
from bench.trees.marks import are_written, marks_of, write
from bench.trees.violation import Violation, require
from bench.trees.wood import MINE, THEIRS, Tokens, wood
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.compaction import compact_one
from workers.engine.node import Node
from workers.engine.stored import Transfer

_OLDEST_SECONDS = 100.0
_OWNERS = (MINE, THEIRS)
_MOST_PINS, _MOST_READERS = 6, 10


@dataclass(slots=True, eq=False)
class Hold:
    """Who holds a node: a reader, what computes it, or a cache. marks: of the text, which ends with the node. owner: its namespace."""

    node: Node
    text: Tokens
    marks: torch.Tensor
    owner: bytes | None
    added: Node | None = None

    @property
    def can_be_found(self) -> bool:
        return self.owner is not None and not any(
            each.is_private or each.is_dead for each in self.node.path()
        )


class Walk:
    """step() does one thing, check() proves everything, finish() ends all that is under way."""

    def __init__(self, seed: str) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - no secrets
        self._block_count = self._dice.randrange(30, 90)
        self._wood = wood(self._block_count)
        self._tree, self._segments = self._wood.tree, self._wood.segments
        self._readers: list[Hold] = []
        self._filling: list[Hold] = []  # requests
        self._builds: list[Hold] = []
        self._pins: list[Hold] = []
        self._copies: list[Transfer] = []
        self._stranger = len(_OWNERS)
        self._parts = {
            (count, seed): tuple(random.Random(f"{count}/{seed}").choices(range(320), k=count * BLOCK_TOKENS))  # noqa: S311
            for count in (1, 2, 3)
            for seed in range(4)
        }  # fmt: skip
        self._acts: list[Callable[[], None]] = [
            *[self._read] * 5, *[self._build] * 2, *[self._fill] * 6, *[self._end] * 5, self._give_up, self._unpin,
            self._evict, self._age, self._compact, self._copy, self._end_copy,
        ]  # fmt: skip

    def step(self) -> None:
        self._dice.choice(self._acts)()

    def check(self) -> None:
        """Every count is right, and what must be found is found and is what was written."""
        self._tree.check_integrity()
        computing = [*self._filling, *self._builds]
        check_counts(
            self._tree,
            self._segments,
            tops=[self._tree.top(owner) for owner in _OWNERS],
            read=[hold.node for hold in (*self._readers, *computing)],
            pinned=[hold.node for hold in (*self._pins, *self._builds)],
            copied=[part for transfer in self._copies for part in transfer.parts if isinstance(part, Node)],
        )
        for hold in (*self._pins, *self._readers[:2]):
            self._check_written(hold)
            if hold.can_be_found and hold.owner is not None:
                found = self._tree.match(self._tree.top(hold.owner), hold.text)
                require(found.node is hold.node, "what is pinned or read cannot be found")

    def finish(self) -> None:
        while self._copies:
            self._end_copy()
        while self._builds:
            self._give_up()
        for hold in (*self._readers, *self._filling):
            self._tree.release(hold.node)
        for hold in self._pins:
            self._tree.unpin(hold.node, forget=True)
        self._readers, self._filling, self._pins = [], [], []
        self._tree.evict(self._block_count)
        self.check()
        require(self._wood.used == 0, "blocks are taken that nobody holds")

    def _read(self) -> None:
        """A request: it reads what is there, and computes the rest unless another does so just now."""
        if len(self._readers) >= _MOST_READERS:
            return
        owner = self._dice.choice([*_OWNERS, *_OWNERS, None])
        hold, is_filling = self._find(self._draw_text(), owner)
        self._readers.append(hold)
        rest = hold.text[hold.node.end :]
        if is_filling or not rest:
            self._shorten(hold)
            return
        added = self._tree.add(hold.node, rest, is_private=self._dice.random() < 0.1)
        if added is not None:
            self._filling.append(Hold(added, hold.text, hold.marks, owner, added))
        self._shorten(hold)

    def _build(self) -> None:
        """A cache: what it needs is pinned at once, computed or not."""
        if len(self._pins) + len(self._builds) >= _MOST_PINS:
            return
        hold, is_filling = self._find(self._draw_text(), self._dice.choice(_OWNERS))
        rest = hold.text[hold.node.end :]
        added = self._tree.add(hold.node, rest) if rest and not is_filling else None
        if rest and added is None:
            self._tree.release(hold.node)
            return
        if added is not None:
            self._tree.release(hold.node)
            hold.node = hold.added = added
        self._tree.pin(hold.node)
        self._builds.append(hold)
        self._finish_build(hold)

    def _fill(self) -> None:
        """Compute some more of what is under way."""
        under_way = [*self._filling, *self._builds]
        if not under_way:
            return
        hold = self._dice.choice(under_way)
        node = hold.node
        if node.segment is None:
            raise Violation("what is being computed has lost its room")
        start = node.begin + node.length
        count = min(self._dice.randrange(1, 200), node.segment.room)
        write(self._segments.arena, node.segment, hold.marks[start : start + count])
        if node.is_ready and hold in self._filling:
            self._filling.remove(hold)
            self._readers.append(hold)
        elif node.is_ready:
            self._finish_build(hold)

    def _end(self) -> None:
        """A request ends: an answered one, or one given up in the middle of its prompt."""
        ending = self._dice.choice([self._readers, self._filling])
        if ending:
            hold = ending.pop(self._dice.randrange(len(ending)))
            if ending is self._readers:
                self._check_written(hold)
            self._tree.release(hold.node)

    def _give_up(self) -> None:
        """A build is cancelled: what only it wanted is gone."""
        if self._builds:
            hold = self._builds.pop(self._dice.randrange(len(self._builds)))
            self._tree.unpin(hold.node, forget=False)
            added = hold.added
            if added is not None and added.pins == 0 and not added.is_dead:
                self._tree.forget(added)
            self._tree.release(hold.node)

    def _unpin(self) -> None:
        """A cache ends; mostly its content must be gone then, as far as no other cache has it."""
        if not self._pins:
            return
        hold = self._pins.pop(self._dice.randrange(len(self._pins)))
        is_forgotten = self._dice.random() < 0.7
        was_found = hold.can_be_found  # behind a collision of keys there may be a second copy, which stays
        self._tree.unpin(hold.node, forget=is_forgotten)
        if is_forgotten and self._dice.random() < 0.5:
            self._tree.forget_behind(hold.node, self._draw_text()[: self._dice.randrange(1, BLOCK_TOKENS)])
        if is_forgotten and was_found and hold.owner is not None:
            others = [each for each in (*self._pins, *self._builds) if each.owner == hold.owner]
            kept = max((common_blocks(hold.text, each.text) for each in others), default=0)
            found = self._tree.match(self._tree.top(hold.owner), hold.text).node
            require(found.end <= kept * BLOCK_TOKENS, "what was deleted is still found")

    def _evict(self) -> None:
        self._tree.evict(self._dice.randrange(1, 10))

    def _age(self) -> None:
        self._wood.now[0] += self._dice.randrange(1, 8)
        self._tree.forget_older_than(_OLDEST_SECONDS)

    def _compact(self) -> None:
        compact_one(self._tree, self._segments, most_runs=1)

    def _copy(self) -> None:
        """A transfer of a node's KV begins."""
        ready = [hold.node for hold in (*self._readers, *self._pins) if hold.node.segment is not None]
        if ready and len(self._copies) < 2:
            node = self._dice.choice(ready)
            self._copies.append(Transfer([node]))

    def _end_copy(self) -> None:
        if self._copies:
            transfer = self._copies.pop(self._dice.randrange(len(self._copies)))
            transfer.end()
            for part in transfer.parts:
                if isinstance(part, Node):
                    self._tree.settle(part)

    def _draw_text(self) -> Tokens:
        """Few beginnings, many ends."""
        text: Tokens = ()
        for _ in range(self._dice.randrange(1, 5)):
            text += self._parts[self._dice.randrange(1, 4), self._dice.randrange(4)]
        return text

    def _find(self, text: Tokens, owner: bytes | None) -> tuple[Hold, bool]:
        """Look it up and hold what is there; whether another computes what comes next."""
        number = _OWNERS.index(owner) if owner is not None else self._stranger
        self._stranger += owner is None
        match = self._tree.match(self._tree.top(owner), text)
        hold = Hold(match.node, text, marks_of(text, number), owner)
        known = tuple(token for node in match.node.path() for token in node.token_ids)
        require(known == text[: len(known)], "another text was found than was asked for")
        require(not match.node.is_dead, "what has ended was found")
        self._tree.acquire(match.node)
        self._check_written(hold)
        return hold, match.filling is not None

    def _finish_build(self, hold: Hold) -> None:
        if hold.node.end == len(hold.text) and hold.node.is_ready:
            self._builds.remove(hold)
            self._tree.release(hold.node)
            self._pins.append(hold)

    def _check_written(self, hold: Hold) -> None:
        path = hold.node.path()
        are_right = are_written(self._segments.arena, path, hold.marks[: hold.node.end])
        require(are_right, "the KV of another text stands where this one's must")

    def _shorten(self, hold: Hold) -> None:
        """A reader's text ends with its node."""
        hold.text, hold.marks = hold.text[: hold.node.end], hold.marks[: hold.node.end]
