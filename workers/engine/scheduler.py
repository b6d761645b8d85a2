"""Who is in the engine, and what runs next. Called on the engine thread only; no tensors."""

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from core.errors import AppError, Internal
from workers.engine.arena import TailPool
from workers.engine.config import EngineConfig
from workers.engine.node import Node
from workers.engine.residence import Residence
from workers.engine.room import Left, Placing, Room
from workers.engine.sequence import Build, Ending, Pin, Sequence
from workers.engine.shares import Shares
from workers.engine.step import Row

log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 5.0


class EndSequence(Protocol):
    def __call__(self, sequence: Sequence, ending: Ending, error: AppError | None = None) -> None: ...


class Scheduler:
    """Pins by cache id, builds, waiting and running sequences."""

    def __init__(self, room: Room, residence: Residence, tails: TailPool, config: EngineConfig) -> None:
        self._room = room
        self._residence = residence
        self._tails = tails
        self._config = config
        self._pins: dict[str, Pin] = {}
        self._builds: dict[str, Build] = {}
        self._left: dict[str, Left] = {}  # by caches that have to be built again
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._leaving: list[Sequence] = []
        self._is_kv_awaited = False  # whether somebody waits for KV that a build or a transfer brings
        self.shares = Shares(config)

    @property
    def tail_token_count(self) -> int:
        """Tokens that the tails of all running requests can have written so far."""
        return sum(s.tail_tokens(self._tails.capacity) for s in self._running)

    @property
    def pins(self) -> Iterable[Pin]:
        """Of all caches whose KV is there."""
        return self._pins.values()

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def build_count(self) -> int:
        return len(self._builds)

    def add_build(self, build: Build) -> None:
        known = self._builds.get(build.cache_id)
        if build.cache_id in self._pins:
            build.end(Ending.BUILT)
        elif known is not None:
            known.is_urgent = known.is_urgent or build.is_urgent
            known.listeners.extend(build.listeners)
        else:
            waiting = sum(
                self._room.budget.missing_blocks(b) for b in self._builds.values() if not b.has_room
            )
            error = self._room.budget.refuse_build(build, waiting)
            if error is None:
                self._builds[build.cache_id] = build
                if self._may_place(build):
                    self._place(build)
                else:
                    self._claim(build)
            else:
                build.end(Ending.FAILED, error)

    def add_sequence(self, sequence: Sequence, end: EndSequence) -> None:
        """Bind the request to its cache's pin, or to the build under way, then queue it."""
        if sequence.cache_id is not None and sequence.cache_id in self._pins:
            self._room.hold(sequence, self._pins[sequence.cache_id])
        elif sequence.cache_id is not None and sequence.cache_id in self._builds:
            build = self._builds[sequence.cache_id]
            build.is_urgent = True
            build.followers.append(sequence)
            sequence.is_waiting_for_build = True
        elif sequence.cache_id is not None:
            _end_all(sequence, end, Ending.PREFIX_MISSING)
            return
        error = self._room.budget.refuse_sequence(sequence)
        if error is not None:
            _end_all(sequence, end, Ending.FAILED, error)
            return
        self._waiting.append(sequence)

    def admit(self, end: EndSequence) -> None:
        """Give room to what waits, in order. A request whose KV somebody else is computing just now lets others pass."""
        self._lose()
        self._is_kv_awaited = False
        is_full = self._place_builds(end)
        if self._has_build_waited():
            return  # who runs gives room back in the end; nobody else may take it first
        for sequence in [s for s in self._waiting if not s.is_waiting_for_build]:
            if self._tails.free_count < len(sequence.candidates):
                break
            try:
                is_next = self._admit(sequence, end, may_allocate=not is_full)
            except Exception as error:  # noqa: BLE001 - its own: the others are not touched; logged where it is told
                self.refuse(sequence, error, end)
                continue
            if not is_next:
                break

    def _admit(self, sequence: Sequence, end: EndSequence, *, may_allocate: bool) -> bool:
        """Whether those behind it may be given room too."""
        is_lost = sequence.pin is not None and sequence.pin.is_lost
        placing = Placing.LOST if is_lost else self._room.place_sequence(sequence, may_allocate=may_allocate)
        self._is_kv_awaited |= placing is Placing.FILLING
        if placing is Placing.LOST:
            self._lose()
        if sequence.pin is not None and sequence.pin.is_lost:
            _end_all(sequence, end, Ending.PREFIX_MISSING)
        elif placing is Placing.PLACED:
            self._waiting.remove(sequence)
            self._running.append(sequence)
            sequence.begin()
        elif placing is Placing.FULL and not self._stands_still():
            return False
        elif placing is Placing.FULL:  # it would wait, and block, for ever
            _end_all(sequence, end, Ending.FAILED, self._room.budget.no_room(sequence))
        return True

    def refuse_build(self, build: Build, error: Exception, end: EndSequence) -> None:
        """Something of ours broke before it was computed."""
        log.error("a build could not be taken", exc_info=error)
        failed = Internal(f"The engine failed: {error}")
        if self._builds.get(build.cache_id) is build:
            self._abandon(build, Ending.FAILED, failed, end)
        else:
            build.end(Ending.FAILED, failed)

    def refuse(self, sequence: Sequence, error: Exception, end: EndSequence) -> None:
        """Something of ours broke before it ran."""
        log.error("a request could not be taken", exc_info=error)
        _end_all(sequence, end, Ending.FAILED, Internal(f"The engine failed: {error}"))

    def next_rows(self) -> list[tuple[Build | Sequence, Row]]:
        """All decode rows, then prefill rows of at most one chunk together. Of the builds that have room one is computed at a time."""
        for sequence in self._running:
            if sequence.tail_length == self._tails.capacity:
                self._room.spill(sequence)
        decoding = [s for s in self._running if s.is_decoding]
        placed = [b for b in self._builds.values() if b.has_room]
        build = min(placed, key=lambda b: not (b.is_urgent or self._is_kv_awaited), default=None)
        work: list[tuple[Build | Sequence, Row]] = [(s, s.row(1, self._tails.capacity)) for s in decoding]
        work += self.shares.next_rows(
            [s for s in self._running if not s.is_decoding],
            build,
            is_awaited=self._is_kv_awaited or (build is not None and build.is_urgent),
            decode_count=len(decoding),
        )
        return sorted(work, key=lambda pair: not pair[1].is_decode)

    def advance(self, item: Build | Sequence, row: Row) -> None:
        """The row's KV is written: count it, and publish a build that is complete."""
        count, in_target = len(row.token_ids), row.target_count
        if row.target is not None:
            row.target.length += in_target
        if row.overflow is not None:
            row.overflow.length += count - in_target
        if isinstance(item, Sequence):
            item.computed += count
            item.tail_length += count - in_target
            return
        item.forwarded += count
        if item.is_complete:
            self._finish_build(item)

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """The prompt is computed: let the siblings go on from it. Gives all candidates, itself first."""
        candidates = sequence.candidates
        for sibling in sequence.siblings:
            self._room.share(sequence, sibling)
            self._running.append(sibling)
        sequence.siblings = []
        return candidates

    def cancel(self, identifier: str, end: EndSequence) -> None:
        build = self._builds.get(identifier)
        if build is not None:
            self._abandon(build, Ending.CANCELLED, None, end)
        for sequence in self._sequences():
            if sequence.request_id == identifier:
                end(sequence, Ending.CANCELLED)

    def drop(self, cache_id: str) -> None:
        pin = self._pins.pop(cache_id, None)
        if pin is not None:
            self._room.end_pin(pin)
        build = self._builds.get(cache_id)
        if build is not None and build.followers:
            build.is_dropped = True
        elif build is not None:
            self._abandon(build, Ending.CANCELLED, None, end=None)
        left = self._left.pop(cache_id, None)
        if left is not None:
            self._room.forget_left(left)

    def fail(self, items: Iterable[Build | Sequence], error: AppError, end: EndSequence) -> None:
        """End what a broken step was computing, unless it has ended already.

        A request ends with all its candidates: some may have been let go on in this very step.
        """
        broken = list(items)
        for item in broken:
            if isinstance(item, Build) and self._builds.get(item.cache_id) is item:
                self._abandon(item, Ending.FAILED, error, end)
        request_ids = {item.request_id for item in broken if isinstance(item, Sequence)}
        for sequence in self._sequences():
            if sequence.request_id in request_ids:
                end(sequence, Ending.FAILED, error)

    def stop(self, end: EndSequence) -> None:
        for build in list(self._builds.values()):
            self._abandon(build, Ending.CANCELLED, None, end)
        for sequence in self._sequences():
            end(sequence, Ending.CANCELLED)

    def release(self, sequence: Sequence, ending: Ending) -> None:
        """Give back all that a candidate holds; what was answered to the end only after its listener was told (`clear`)."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        is_answered = sequence in self._running and ending in (Ending.STOP, Ending.MAX_TOKENS)
        if sequence in self._running:
            self._running.remove(sequence)
        for build in list(self._builds.values()):
            if sequence in build.followers:
                build.followers.remove(sequence)
                if (
                    build.is_dropped and not build.followers
                ):  # its cache has ended, and now nobody waits for it
                    self._abandon(build, Ending.CANCELLED, None, end=None)
        if is_answered:
            self._leaving.append(sequence)
        else:
            self._room.give_back(sequence)

    def clear(self) -> None:
        """Leave the KV of finished answers for who asks on, and give back their room. Called between two steps."""
        while self._leaving:
            sequence = self._leaving.pop()
            self._room.leave(sequence)
            self._room.give_back(sequence)

    def _lose(self) -> None:
        """Give up the pins that need KV which has to be computed again. Whoever asks for one has it built anew."""
        for part in self._residence.take_lost():
            for pin in [pin for pin in self._pins.values() if part in pin.parts]:
                del self._pins[pin.cache_id]
                self._left[pin.cache_id] = self._room.left_of(pin)
                self._room.lose_pin(pin)
            for sequence in self._waiting:  # also for a cache that has ended
                if sequence.pin is not None and part in sequence.pin.parts:
                    self._room.lose_pin(sequence.pin)
            if isinstance(part, Node):
                self._room.lose(part)

    def _place_builds(self, end: EndSequence) -> bool:
        """Whether one that somebody waits for has no room: it comes before all requests. Of the others one is computed at a time."""
        is_full = False
        for build in [b for b in self._builds.values() if not b.has_room]:
            if not self._may_place(build):  # those before it may have been given room just now
                continue
            try:
                placing = self._place(build)
            except Exception as error:  # noqa: BLE001 - its own, as above
                self.refuse_build(build, error, end)
                continue
            self._is_kv_awaited |= placing is Placing.FILLING
            if placing is Placing.FULL and self._stands_still():
                self._abandon(build, Ending.FAILED, self._room.budget.no_room_for(build), end)
            elif placing is Placing.FULL:
                is_full = is_full or build.is_urgent
                build.full_since = build.full_since or time.monotonic()
            else:  # what it waits for now is not room that others take
                build.full_since = None
        return is_full

    def _may_place(self, build: Build) -> bool:
        return build.is_urgent or not any(b.has_room and not b.is_urgent for b in self._builds.values())

    def _has_build_waited(self) -> bool:
        """One that somebody waits for has been passed by others for long."""
        limit = time.monotonic() - _PATIENCE_SECONDS
        return any(
            b.is_urgent and not b.has_room and b.full_since is not None and b.full_since < limit
            for b in self._builds.values()
        )

    def _place(self, build: Build) -> Placing:
        self._lose()  # what is lost must not stand in its way
        while (placing := self._room.place_build(build)) is Placing.LOST:
            self._lose()
        if placing is Placing.PLACED and build.is_complete:
            self._finish_build(build)
        return placing

    def _claim(self, build: Build) -> None:
        """What is there in whole waits for nobody: others must not take it for unclaimed meanwhile."""
        self._lose()
        self._room.claim_build(build)
        if build.has_room:
            self._finish_build(build)

    @property
    def has_unplaced_builds(self) -> bool:
        return any(not build.has_room for build in self._builds.values())

    def _stands_still(self) -> bool:
        """Nothing goes on that could give room back, and nothing can be begun that would."""
        if self._running or any(build.has_room for build in self._builds.values()):
            return False
        self._residence.writes.tend(is_full=True)
        return self._residence.is_idle

    def _sequences(self) -> list[Sequence]:
        return [each for s in (*self._running, *self._waiting) for each in s.candidates]

    def _finish_build(self, build: Build) -> None:
        pin = self._room.finish_build(build)
        del self._builds[build.cache_id]
        self._left.pop(build.cache_id, None)
        for sequence in build.followers:
            self._room.hold(sequence, pin)
            sequence.is_waiting_for_build = False
        if build.is_dropped:
            self._room.end_pin(pin)
        else:
            self._pins[build.cache_id] = pin
        build.end(Ending.BUILT)

    def _abandon(self, build: Build, ending: Ending, error: AppError | None, end: EndSequence | None) -> None:
        del self._builds[build.cache_id]
        self._room.give_up_build(build)
        if build.is_dropped:
            self._room.forget_left(self._room.left_of(build))
        elif build.is_rebuild:
            self._left[build.cache_id] = self._room.left_of(build)
        if end is not None:
            for sequence in list(build.followers):
                _end_all(sequence, end, ending, error)
        build.end(ending, error)


def _end_all(sequence: Sequence, end: EndSequence, ending: Ending, error: AppError | None = None) -> None:
    """End a request whose prompt is not computed yet: every candidate of it."""
    for each in sequence.candidates:
        end(each, ending, error)
