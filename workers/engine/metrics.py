"""What an engine tells of itself: the instruments bound to one engine.

Called on the engine thread. Gauges are read from plain integers by whoever asks for them; a value may be a step old.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import Counter

from core.metrics import Metrics
from workers.engine.arena import Arena
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.kv_tier import KvTier
from workers.engine.residence import Residence
from workers.engine.room import Room
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Build, Ending, Sequence
from workers.engine.tree import PrefixTree

_DEVICE = KvTier.DEVICE
Key = TypeVar("Key")


class EngineMetrics:
    """Counts from now on: what the engine did before is not told, but for KV files that it rejected."""

    def __init__(
        self,
        metrics: Metrics,
        arena: Arena,
        tree: PrefixTree,
        residence: Residence,
        room: Room,
        scheduler: Scheduler,
    ) -> None:
        # Each labelled series is looked up once, and is there from the start with its zero.
        sources = ("computed", "explicit", "implicit")
        self._computed, self._explicit, self._implicit = (metrics.prompt_tokens.labels(s) for s in sources)
        works = ("prompt", "build", "rebuild")
        self._of_prompts, self._of_builds, self._of_rebuilds = (
            metrics.prefill_tokens.labels(work) for work in works
        )
        self._skipped = metrics.prefill_tokens_skipped
        self._time_to_first_token = metrics.time_to_first_token
        self._mirrored = [_Mirrored(*each, told=each[1]()) for each in _totals(metrics, tree, residence)]
        self._mirrored += _rejections(metrics, residence)
        self._asked_rebuilds = metrics.rebuilds.labels("asked")
        self._background_rebuilds = metrics.rebuilds.labels("background")
        self._step_seconds = metrics.step_seconds
        self._step_decode_rows = metrics.step_decode_rows
        self._step_prefill_tokens = metrics.step_prefill_tokens
        metrics.requests.labels("running").set_function(lambda: scheduler.running_count)
        metrics.requests.labels("waiting").set_function(lambda: scheduler.waiting_count)
        metrics.builds.set_function(lambda: scheduler.build_count)
        _mirror_memory(metrics, arena, tree, residence, room)

    def prefill(self, item: Build | Sequence, token_count: int) -> None:
        """So many tokens of it were computed."""
        if isinstance(item, Sequence):
            self._of_prompts.inc(token_count)
        elif item.is_rebuild:
            self._of_rebuilds.inc(token_count)
        else:
            self._of_builds.inc(token_count)

    def first_token(self, sequence: Sequence) -> None:
        """A request's prompt is there in whole and its first token is drawn; told once a request.

        What a rebuild computed again is skipped by all readers but the first.
        """
        seconds = time.monotonic() - sequence.asked_at
        cached, found = sequence.prefix_length, sequence.reused
        self._computed.inc(sequence.prompt_count - found)
        self._explicit.inc(cached)
        self._implicit.inc(found)
        recomputed = 0 if sequence.pin is None else sequence.pin.take_recomputed()
        self._skipped.inc(cached + found - recomputed)
        kind = "explicit" if sequence.cache_id is not None else "implicit" if found else "cold"
        self._time_to_first_token.labels(kind, sequence.kv_tier).observe(seconds)

    def build_ended(self, build: Build, ending: Ending) -> None:
        if build.is_rebuild and build.forwarded and ending is Ending.BUILT:
            (self._asked_rebuilds if build.is_urgent else self._background_rebuilds).inc()

    def step(self, decode_rows: int, prefill_tokens: int, seconds: float) -> None:
        """A step is done, and took so long, drawing and telling included."""
        self._step_seconds.observe(seconds)
        self._step_decode_rows.observe(decode_rows)
        self._step_prefill_tokens.observe(prefill_tokens)
        self.tell()

    def tell(self) -> None:
        """Bring counters up to date that follow totals of the engine's."""
        for each in self._mirrored:
            each.tell()


def _mirror_memory(
    metrics: Metrics, arena: Arena, tree: PrefixTree, residence: Residence, room: Room
) -> None:
    """Pinned, ended, automatic and free are the whole arena; used and free all that fits another tier."""
    pool = arena.pool

    def show(kind: str, count: Callable[[], int]) -> None:
        # A reader between two changes of the engine's may see one of them only.
        metrics.kv_bytes.labels(_DEVICE, kind).set_function(lambda: max(0, count()) * arena.block_bytes)

    show("pinned", lambda: room.budget.resident_pinned_block_count)
    show("ended", lambda: tree.counts.dead)
    show("automatic", lambda: pool.used_count - room.budget.resident_pinned_block_count - tree.counts.dead)
    show("free", lambda: pool.free_count)
    for tier in residence.bytes_below():
        _mirror_below(metrics, residence, tier)
    metrics.kv_pin_budget_bytes.set_function(lambda: room.budget.pin_limit_blocks * arena.block_bytes)
    metrics.kv_pin_budget_used_bytes.set_function(lambda: room.budget.held_block_count * arena.block_bytes)


def _mirror_below(metrics: Metrics, residence: Residence, tier: KvTier) -> None:
    def used() -> int:
        return residence.bytes_below()[tier][0]

    metrics.kv_bytes.labels(tier, "used").set_function(used)
    metrics.kv_bytes.labels(tier, "free").set_function(
        lambda: max(0, residence.bytes_below()[tier][1] - used())
    )


class _Mirrored:
    """A counter that follows a total, but for what counts as told already."""

    def __init__(self, counter: Counter, total: Callable[[], int], *, told: int = 0) -> None:
        self._counter = counter
        self._total = total
        self._told = told

    def tell(self) -> None:
        total = self._total()
        if total != self._told:
            self._counter.inc(total - self._told)
            self._told = total


def _totals(
    metrics: Metrics, tree: PrefixTree, residence: Residence
) -> Iterator[tuple[Counter, Callable[[], int]]]:
    counts = residence.counts
    yield metrics.kv_evicted_tokens.labels(_DEVICE), lambda: tree.evicted_block_count * BLOCK_TOKENS
    yield (
        metrics.kv_demoted_tokens,
        lambda: tree.demoted_block_count * BLOCK_TOKENS + counts.demoted_of_pieces,
    )
    yield metrics.kv_lost_tokens, lambda: counts.lost
    yield metrics.kv_choices.labels("load"), lambda: counts.loads
    yield metrics.kv_choices.labels("recompute"), lambda: counts.recomputes
    for tier in residence.bytes_below():
        yield metrics.kv_promoted_tokens.labels(tier), _total_of(lambda: counts.promoted, tier)
        yield metrics.kv_evicted_tokens.labels(tier), _total_of(residence.evicted_below, tier)


def _rejections(metrics: Metrics, residence: Residence) -> Iterator[_Mirrored]:
    """Those at the start of the engine too: that is where most files are looked at."""
    for reason in residence.rejections():
        yield _Mirrored(metrics.kv_files_rejected.labels(reason), _total_of(residence.rejections, reason))


def _total_of(totals: Callable[[], Mapping[Key, int]], key: Key) -> Callable[[], int]:
    return lambda: totals().get(key, 0)
