"""The engine: one thread that owns the device and turns token ids into token ids.

Each turn of its loop: take control messages, admit, run one packed step (all decode rows and a bounded chunk of prefill),
sample, tell the listeners. Other threads only leave messages. It knows nothing of text, HTTP or the database.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from core.errors import AppError, Internal, Unavailable
from core.metrics import Metrics
from workers.engine.arena import Arena, TailPool
from workers.engine.attention import choose_backend
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.compaction import compact_one
from workers.engine.config import EngineConfig
from workers.engine.counters import Counters
from workers.engine.keys import BlockKey, root_key
from workers.engine.metrics import EngineMetrics
from workers.engine.model import Model
from workers.engine.residence import Residence
from workers.engine.room import Room
from workers.engine.sampling import logprobs, sample
from workers.engine.scheduler import Scheduler
from workers.engine.segment import Segments
from workers.engine.sequence import Build, Ending, Sequence
from workers.engine.step import Row, Step
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.host_store import HostStore
from workers.engine.tiers.moves import Moves
from workers.engine.tree import PrefixTree

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_IDLE_SECONDS = 0.5
_AGEING_SECONDS = 60.0
_CLAIMING_SECONDS = 30.0  # in which what is found at start waits for builds that have no room so far
_LONGEST_AUTOMATIC_SECONDS = 24 * 3600.0


class Engine:
    """submit, build, cancel and drop may be called from any thread and return at once. host, disk: where KV lies that the arena has no
    room for, and all that caches pin."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        host: HostStore | None = None,
        disk: DiskStore | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.counters = Counters()
        self._arena = Arena(model.shape, config)
        self._tails = TailPool(model.shape, config)
        self._segments = Segments(self._arena)
        host_segments = None if host is None else host.segments
        self._tree = PrefixTree(self._segments, self._root_key, time.monotonic, host_segments)
        self._residence = Residence(
            self._tree,
            self._segments,
            host,
            disk,
            Moves(self._leave),
            lambda: self._scheduler.shares.pace.token_s,
            time.monotonic,
        )
        self._room = Room(self._tree, self._segments, self._tails, self._residence, config)
        self._scheduler = Scheduler(self._room, self._residence, self._tails, config)
        self.report_to(Metrics())
        self._attend = choose_backend(config.device, config.dtype, model.shape.head_size)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_in_order = True
        self._next_ageing = time.monotonic() + _AGEING_SECONDS
        self._found_before: float | None = None  # until when KV that is found at start waits for its caches
        self._stopping = False
        self._has_stopped = False
        self._open_count = 0
        self._lock = threading.RLock()  # of the count, and of the end of the inbox
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def arena_tokens(self) -> int:
        return self._arena.pool.block_count * BLOCK_TOKENS

    @property
    def kv_bytes_per_token(self) -> int:
        return self.model.shape.kv_bytes_per_token(self.config.dtype)

    @property
    def cache_token_capacity(self) -> int:
        """How many tokens pins may take, each cache rounded up to whole blocks."""
        return self._room.budget.pin_limit_blocks * BLOCK_TOKENS

    @property
    def is_running(self) -> bool:
        """Whether it answers: until it is stopped, or has ended by an error that only a new start can mend."""
        return self._thread.is_alive()

    def report_to(self, metrics: Metrics) -> None:
        """From now on what it does is counted there, and nowhere else."""
        self._metrics = EngineMetrics(
            metrics, self._arena, self._tree, self._residence, self._room, self._scheduler
        )

    def start(self) -> None:
        """Know the KV that an earlier process has left on disk, and begin."""
        if self._residence.files is not None:
            self._residence.files.find()
        self._thread.start()

    def forget_unclaimed(self) -> None:
        """All caches that live have been asked for: remove what was found on disk and belongs to none of them."""
        limit = time.monotonic()

        def begin() -> None:
            self._found_before = limit

        self._leave(begin)

    def stop(self) -> None:
        """End everything under way as CANCELLED and stop the thread. Returns when it has stopped."""
        self._leave(self._begin_stop)
        self._thread.join()
        self._residence.stop()

    def submit(self, sequence: Sequence) -> None:
        """Take a request. Raises Unavailable where too many wait already, or where the engine has stopped."""
        limit = self.config.max_running_requests + self.config.max_waiting_requests
        count = len(sequence.candidates)  # asked before the engine has it, which lets them part
        with self._lock:
            if self._open_count >= limit:
                raise Unavailable(
                    f"{limit} requests are running or waiting already. Try again in a moment.",
                    retry_after_seconds=1,
                )
            if not self._leave(lambda: self._add_sequence(sequence)):
                raise _stopped()
            self._open_count += count

    def build(self, build: Build) -> None:
        """Compute a cache's KV. One that is there already ends at once, one under way ends with the first.

        Raises Unavailable where the engine has stopped.
        """
        metrics = self._metrics
        build.listeners.insert(0, lambda ending, _: metrics.build_ended(build, ending))
        if not self._leave(lambda: self._add_build(build)):
            raise _stopped()

    def cancel(self, identifier: str) -> None:
        """Stop the request of this id, or the build of this cache id, before the next step. Unknown ids are ignored."""
        self._leave(lambda: self._scheduler.cancel(identifier, self._end))

    def drop(self, cache_id: str) -> None:
        """The cache has ended: give its blocks back once its last reader has finished."""
        self._leave(lambda: self._scheduler.drop(cache_id))

    def call(self, function: Callable[[Segments], Result]) -> "Future[Result]":
        """Run a function on the engine thread between two steps: for checks of what only that thread may read."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(function(self._segments))
            except Exception as error:  # noqa: BLE001 - it is raised again where the future is read
                future.set_exception(error)

        if not self._leave(run):
            raise _stopped()
        return future

    def _root_key(self, namespace: bytes) -> BlockKey:
        return root_key(namespace, self.config.fingerprint, self.config.dtype, self.model.shape)

    def _leave(self, message: Callable[[], None]) -> bool:
        """Leave a message for the engine thread; False where it has stopped and would never take it."""
        with self._lock:
            if not self._has_stopped:
                self._inbox.put(message)
            return not self._has_stopped

    def _run(self) -> None:
        try:
            self._run_until_stopped()
        except Exception:
            log.critical("the engine has come to an end: only a new start can mend it", exc_info=True)
        finally:
            # However it came to an end: whoever was told that his message is taken is told what became of it.
            with self._lock:
                self._has_stopped = True
            self._take_messages(wait=False)
            self._scheduler.stop(self._end)
            self._scheduler.clear()

    def _run_until_stopped(self) -> None:
        work: list[tuple[Build | Sequence, Row]] = []
        while True:
            # Without rows nothing can change but by a message: room is only given back by steps and messages.
            self._take_messages(wait=not work)
            if self._stopping:
                return
            self._scheduler.admit(self._end)
            self._forget_found()
            self._age()
            self._residence.writes.tend(is_full=False)
            work = self._scheduler.next_rows()
            if not work:
                continue
            try:
                self._step(work)
            except Exception as error:
                # The edge of the engine: whatever broke ends the requests of this step and nothing else.
                log.exception("a step failed")
                self._scheduler.fail(
                    [item for item, _ in work], Internal(f"The engine failed: {error}"), self._end
                )
            self._scheduler.clear()

    def _idle(self) -> None:
        """Nothing has come for a moment: put memory in order, then look only now and then.

        A count that is wrong ends the engine, with its log: what is read might be another project's.
        """
        self._metrics.tell()
        has_aged = self._age()
        self._residence.writes.tend(is_full=False)
        if has_aged or not self._is_in_order:
            self._is_in_order = not compact_one(self._tree, self._segments)
            self._tree.check_integrity()

    def _age(self) -> bool:
        """Each minute, busy or not: forget what is too old, try again what did not work. Whether it was time."""
        if time.monotonic() < self._next_ageing:
            return False
        self._next_ageing = time.monotonic() + _AGEING_SECONDS
        self._tree.forget_older_than(_LONGEST_AUTOMATIC_SECONDS)
        self._residence.retry()
        for pin in self._scheduler.pins:
            self._residence.writes.keep(pin.piece or pin.node)
        return True

    def _forget_found(self) -> None:
        """What a deleted cache has left is not told from what requests have: all that no cache pins goes."""
        if self._found_before is None:
            return
        if self._scheduler.has_unplaced_builds and time.monotonic() < self._found_before + _CLAIMING_SECONDS:
            return
        self._tree.forget_made_before(self._found_before)
        if self._residence.files is not None:
            self._residence.files.forget_unclaimed_pieces()
        self._found_before = None

    def _add_build(self, build: Build) -> None:
        try:
            self._scheduler.add_build(build)
        except Exception as error:  # noqa: BLE001 - logged where it is told
            self._scheduler.refuse_build(build, error, self._end)

    def _add_sequence(self, sequence: Sequence) -> None:
        try:
            self._scheduler.add_sequence(sequence, self._end)
        except Exception as error:  # noqa: BLE001 - logged where it is told
            self._scheduler.refuse(sequence, error, self._end)

    def _begin_stop(self) -> None:
        self._stopping = True

    def _take_messages(self, *, wait: bool) -> None:
        while wait:
            try:
                self._inbox.get(timeout=_IDLE_SECONDS)()
                break
            except queue.Empty:
                self._idle()
        try:
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _step(self, work: list[tuple[Build | Sequence, Row]]) -> None:
        self._is_in_order = False
        begun, decoded, computed = (
            time.perf_counter(),
            self.counters.decode_tokens,
            self.counters.prefill_tokens,
        )
        step = Step(tuple(row for _, row in work), self._arena, self._tails, self._attend, self.config.device)
        started = time.perf_counter()
        packed_logits = self.model.forward(step)
        seconds = time.perf_counter() - started
        self._scheduler.shares.pace.observe(
            seconds, step.decode_count, step.token_ids.numel() - step.decode_count
        )
        logits = iter(packed_logits)
        self.counters.steps += 1
        self._count_memory(step, packed_logits)
        for item, row in work:
            if isinstance(item, Sequence) and item.is_decoding:
                self.counters.decode_tokens += 1
            else:
                self.counters.prefill_tokens += len(row.token_ids)
                self._metrics.prefill(item, len(row.token_ids))
            self._scheduler.advance(item, row)
        for item, row in work:
            if isinstance(item, Sequence) and row.wants_logits:
                row_logits = next(logits)
                is_first = item.output_count == 0
                for candidate in self._scheduler.fork(item):
                    self._draw(candidate, row_logits, is_first=is_first and candidate is item)
        self._metrics.step(
            self.counters.decode_tokens - decoded,
            self.counters.prefill_tokens - computed,
            time.perf_counter() - begun,
        )

    def _count_memory(self, step: Step, logits: torch.Tensor) -> None:
        tails = self._scheduler.tail_token_count * self.model.shape.kv_bytes_per_token(self.config.dtype)
        workspace = self.model.workspace_bytes(step.token_ids.numel())
        counters = self.counters
        counters.peak_tail_bytes = max(counters.peak_tail_bytes, tails)
        counters.peak_logit_bytes = max(counters.peak_logit_bytes, logits.nbytes)
        counters.peak_workspace_bytes = max(counters.peak_workspace_bytes, workspace)

    def _draw(self, sequence: Sequence, logits: torch.Tensor, *, is_first: bool) -> None:
        """Draw a candidate's next token and tell it. is_first: it is the first token of the request."""
        position = sequence.prefix_length + len(sequence.token_ids)
        try:
            token = sample(logits, sequence.sampling, position, sequence.answer)
        except ArithmeticError as error:  # this request's own: the others of the step are not touched
            self._end(sequence, Ending.FAILED, self._out_of_range(error))
            return
        if is_first:
            self._metrics.first_token(sequence)
        if token in sequence.stop_token_ids:
            self._end(sequence, Ending.STOP)
            return
        sequence.token_ids.append(token)
        top = sequence.top_logprobs
        if sequence.on_token(token, None if top is None else logprobs(logits, token, top)):
            self._end(sequence, Ending.STOP)
        elif sequence.output_count == sequence.max_output_tokens:
            self._end(sequence, Ending.MAX_TOKENS)

    def _out_of_range(self, error: ArithmeticError) -> Internal:
        name = str(self.config.dtype).removeprefix("torch.")
        return Internal(
            f"The model's numbers left the range of {name} for this prompt ({error}). Serve it with another HEADSTART_DTYPE."
        )

    def _end(self, sequence: Sequence, ending: Ending, error: AppError | None = None) -> None:
        """The one way out of a request, whatever the reason."""
        self._scheduler.release(sequence, ending)
        with self._lock:
            self._open_count -= 1
        sequence.on_end(ending, error)


def _stopped() -> Unavailable:
    return Unavailable("The engine has stopped.", retry_after_seconds=1)
