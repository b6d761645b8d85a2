"""Feeds the engine: messages in, events out, usage recorded before the last event.

message ─► engine ─► tokens ─► Generation ─► TokensEvent
              └────► ending ─► one transaction (usage FINAL or VOID) ─► FinishedEvent | FailedEvent
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from billing import usage
from billing.cost import cost_of_request
from core.clock import Clock, instant
from core.errors import AppError, Unavailable
from core.messages import (
    BuildCache,
    Cost,
    DropCache,
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Generate,
    Message,
)
from core.namespaces import Namespaces
from models.session import Database
from prompting.format import PromptFormat
from workers.cache_builds import CacheBuilds
from workers.engine.engine import Engine
from workers.engine.sequence import Ending, Sequence
from workers.generation import Candidate, Generation
from workers.units import Units

log = logging.getLogger(__name__)
Publish = Callable[[str, Event], None]

_FAILED = "FAILED"
_WORST_FIRST = (FinishReason.CANCELLED, FinishReason.MAX_TOKENS, FinishReason.STOP)
_REASONS = {
    Ending.STOP: FinishReason.STOP,
    Ending.MAX_TOKENS: FinishReason.MAX_TOKENS,
    Ending.CANCELLED: FinishReason.CANCELLED,
}


@dataclass(slots=True)
class _Rebuild:
    """Why a rebuild failed, for the request that waited for it. Set before that request learns of it."""

    error: AppError = field(
        default_factory=lambda: Unavailable(
            "The KV of the cached content could not be rebuilt.", retry_after_seconds=1
        )
    )

    has_failed: bool = False

    def set(self, error: AppError) -> None:
        self.error, self.has_failed = error, True


class Runtime:
    """handle() and cancel() return at once and may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        database: Database,
        clock: Clock,
        prompt_format: PromptFormat,
        namespaces: Namespaces,
        publish: Publish,
        threads: int,
        incarnation: str,
    ) -> None:
        self._engine = engine
        self._database = database
        self._clock = clock
        self._format = prompt_format
        self._namespaces = namespaces
        self._publish = publish
        self._units = Units(threads)
        self._generations: dict[str, Generation] = {}
        self._lock = threading.Lock()
        self.builds = CacheBuilds(engine, database, clock, namespaces, self._units, publish, incarnation)

    @property
    def is_running(self) -> bool:
        """Whether the engine answers."""
        return self._engine.is_running

    @property
    def kv_bytes_per_token(self) -> int:
        return self._engine.kv_bytes_per_token

    @property
    def cache_token_capacity(self) -> int:
        """How many tokens all caches together may pin."""
        return self._engine.cache_token_capacity

    def handle(self, message: Message) -> None:
        """Start what a message asks for. Raises Unavailable where the engine has too much to do."""
        match message:
            case Generate():
                self._generate(message)
            case BuildCache():
                self.builds.announce(message.cache_id)
                self._units.start(
                    lambda: self.builds.build(message), lambda error: self.builds.fail(message, error)
                )
            case DropCache():
                self._engine.drop(message.cache_id)

    def cancel(self, channel_id: str) -> None:
        with self._lock:
            generation = self._generations.get(channel_id)
            if generation is not None:
                generation.is_cancelled = True
        self.builds.cancel(channel_id)

    def stop(self) -> None:
        """Cancel what runs, record its usage, stop."""
        self._engine.stop()
        self._units.stop()

    def _generate(self, message: Generate) -> None:
        generation = Generation(
            message, self._format.detokenizer, lambda event: self._publish(message.request_id, event)
        )
        self._generations[message.request_id] = generation
        try:
            self._submit(generation, None)
        except AppError:
            del self._generations[message.request_id]
            raise

    def _submit(self, generation: Generation, rebuild: _Rebuild | None) -> None:
        """Give it to the engine, unless it was cancelled while it was not there."""
        sequences = [
            self._sequence(generation, index, rebuild) for index in range(len(generation.candidates))
        ]
        sequences[0].siblings = sequences[1:]
        with self._lock:
            if not generation.is_cancelled:
                self._engine.submit(sequences[0])
                return
        self._start_end(generation, None)

    def _sequence(self, generation: Generation, index: int, rebuild: _Rebuild | None) -> Sequence:
        message, candidate = generation.message, generation.candidates[index]

        def on_end(ending: Ending, error: AppError | None) -> None:
            if ending != Ending.PREFIX_MISSING:
                self._end_candidate(generation, candidate, ending, error)
            elif rebuild is not None and rebuild.has_failed:
                self._end_candidate(generation, candidate, Ending.FAILED, rebuild.error)
            elif index == 0:  # all of them are told
                self._rebuild_and_submit(generation)

        return Sequence(
            request_id=message.request_id,
            token_ids=list(message.token_ids),
            cache_id=message.cache_id,
            sampling=replace(message.sampling, seed=message.sampling.seed + index),
            max_output_tokens=message.max_output_tokens,
            stop_token_ids=frozenset(self._format.eos_token_ids),
            on_token=candidate.push,
            on_end=on_end,
            top_logprobs=message.top_logprobs,
            namespace=self._namespaces.of(message.project_id) if message.reuses_kv else None,
            on_start=generation.start,
            asked_at=generation.asked_at,
        )

    def _end_candidate(
        self, generation: Generation, candidate: Candidate, ending: Ending, error: AppError | None
    ) -> None:
        """The request has ended with the last of its candidates; one that fails takes the others with it."""
        if ending == Ending.FAILED:
            candidate.fail(error)
            self._engine.cancel(generation.message.request_id)
        else:
            candidate.finish(_REASONS[ending])
        if generation.has_ended:
            self._start_end(generation, generation.error)

    def _rebuild_and_submit(self, generation: Generation) -> None:
        """The KV is not there (a restart, say): compute it again, unbilled, and submit once more, as its follower."""
        cache_id = generation.message.cache_id
        outcome = _Rebuild()

        def rebuild() -> None:
            if cache_id is None:
                raise RuntimeError("a request without a cache misses no prefix")
            self.builds.rebuild(cache_id, is_urgent=True, on_error=outcome.set)
            self._submit(generation, outcome)

        self._units.start(rebuild, lambda error: self._start_end(generation, error))

    def _start_end(self, generation: Generation, error: AppError | None) -> None:
        self._units.settle(
            lambda: self._end(generation, error), lambda failure: self._fail(generation, failure)
        )

    def _end(self, generation: Generation, error: AppError | None) -> None:
        """One transaction ends the request: FINAL with what was produced, VOID where nothing was."""
        message, tokens, reasons = generation.message, generation.output_tokens, generation.reasons
        reused = generation.implicit_cache_tokens
        self._generations.pop(message.request_id, None)
        is_whole = error is None and FinishReason.CANCELLED not in reasons
        is_owed = is_whole or tokens > 0
        end_reason = (
            _FAILED if error is not None else next(reason for reason in _WORST_FIRST if reason in reasons)
        )
        cost = Cost((), 0)
        with self._database.write() as session:
            at = instant(session, self._clock)
            row = session, message.request_id, message.attempt
            if is_owed:
                is_ours = usage.finalise(*row, tokens, at, end_reason, implicit_cache_tokens=reused)
                is_ours = is_ours or usage.was_finalised(
                    *row, tokens, end_reason, implicit_cache_tokens=reused
                )
                cost = cost_of_request(session, message.project_id, message.request_id)
            else:
                is_ours = usage.void(*row, at, end_reason) or usage.was_voided(*row, end_reason)
        if not is_ours:
            log.warning("usage was settled elsewhere", extra={"request_id": message.request_id})
            return
        last = (
            FinishedEvent(generation.number(), reasons, reused, cost)
            if is_owed and error is None
            else FailedEvent(generation.number(), error or _given_up())
        )
        self._publish(message.request_id, last)

    def _fail(self, generation: Generation, error: AppError) -> None:
        """The ending could not be recorded: the row stays reserved, unbilled, until the next start voids it."""
        log.error("usage of %s was not recorded: %s", generation.message.request_id, error)
        self._publish(generation.message.request_id, FailedEvent(generation.number(), error))


def _given_up() -> Unavailable:
    """Stopped before its first token: by its own caller, who does not read this, or because the server stops."""
    return Unavailable("The server is stopping; nothing was done. Send it again.", retry_after_seconds=1)
