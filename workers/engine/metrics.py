"""What an engine tells of itself: the instruments bound to one engine.

Called on the engine thread. Gauges are read from plain integers by whoever asks for them; a value may be a step old.
"""

import time
from collections.abc import Callable

from core.metrics import Metrics
from workers.engine.arena import Arena
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.kv_tier import KvTier
from workers.engine.room import Room
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Build, Ending, Sequence
from workers.engine.tree import PrefixTree

_DEVICE = KvTier.DEVICE


class EngineMetrics:
    """Counts from now on: what the engine did before is not told."""

    def __init__(
        self, metrics: Metrics, arena: Arena, tree: PrefixTree, room: Room, scheduler: Scheduler
    ) -> None:
        self._tree = tree
        self._told_evicted_blocks = tree.evicted_block_count
        # Each labelled series is looked up once, and is there from the start with its zero.
        sources = ("computed", "explicit", "implicit")
        self._computed, self._explicit, self._implicit = (metrics.prompt_tokens.labels(s) for s in sources)
        works = ("prompt", "build", "rebuild")
        self._of_prompts, self._of_builds, self._of_rebuilds = (
            metrics.prefill_tokens.labels(work) for work in works
        )
        self._skipped = metrics.prefill_tokens_skipped
        self._time_to_first_token = metrics.time_to_first_token
        self._evicted = metrics.kv_evicted_tokens.labels(_DEVICE)
        self._asked_rebuilds = metrics.rebuilds.labels("asked")
        self._background_rebuilds = metrics.rebuilds.labels("background")
        self._step_seconds = metrics.step_seconds
        self._step_decode_rows = metrics.step_decode_rows
        self._step_prefill_tokens = metrics.step_prefill_tokens
        metrics.requests.labels("running").set_function(lambda: scheduler.running_count)
        metrics.requests.labels("waiting").set_function(lambda: scheduler.waiting_count)
        metrics.builds.set_function(lambda: scheduler.build_count)
        _mirror_memory(metrics, arena, room)

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
        evicted = self._tree.evicted_block_count
        if evicted != self._told_evicted_blocks:
            self._evicted.inc((evicted - self._told_evicted_blocks) * BLOCK_TOKENS)
            self._told_evicted_blocks = evicted


def _mirror_memory(metrics: Metrics, arena: Arena, room: Room) -> None:
    """Pinned, ended, automatic and free are the whole arena."""
    pool = arena.pool

    def show(kind: str, count: Callable[[], int]) -> None:
        # A reader between two changes of the engine's may see one of them only.
        metrics.kv_bytes.labels(_DEVICE, kind).set_function(lambda: max(0, count()) * arena.block_bytes)

    show("pinned", lambda: room.pinned_block_count)
    show("ended", lambda: room.held_block_count - room.pinned_block_count)
    show("automatic", lambda: pool.used_count - room.held_block_count)
    show("free", lambda: pool.free_count)
    metrics.kv_pin_budget_bytes.labels(_DEVICE).set(room.pin_limit_blocks * arena.block_bytes)
