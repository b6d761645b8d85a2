"""Feeds the engine: messages in, events out, usage recorded before the last event.

message ─► engine ─► tokens ─► Generation ─► TokensEvent
              └────► ending ─► one transaction (usage FINAL or VOID) ─► FinishedEvent | FailedEvent
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from billing import usage
from core.clock import Clock, instant
from core.errors import AppError, Unavailable
from core.messages import (
    BuildCache,
    DropCache,
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Generate,
    Message,
)
from models.session import Database
from prompting.format import PromptFormat
from workers.cache_builds import CacheBuilds
from workers.engine.engine import Engine
from workers.engine.sequence import Ending, Sequence
from workers.generation import Generation
from workers.units import Units

log = logging.getLogger(__name__)
Publish = Callable[[str, Event], None]

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

    def set(self, error: AppError) -> None:
        self.error = error


class Runtime:
    """handle() and cancel() return at once and may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        database: Database,
        clock: Clock,
        prompt_format: PromptFormat,
        publish: Publish,
        threads: int,
    ) -> None:
        self._engine = engine
        self._database = database
        self._clock = clock
        self._format = prompt_format
        self._publish = publish
        self._units = Units(threads)
        self._generations: dict[str, Generation] = {}
        self._lock = threading.Lock()
        self.builds = CacheBuilds(engine, database, clock, self._units, publish)

    @property
    def is_running(self) -> bool:
        """Whether the engine answers."""
        return self._engine.is_running

    def handle(self, message: Message) -> None:
        """Start what a message asks for. Raises Unavailable where the engine has too much to do."""
        match message:
            case Generate():
                self._generate(message)
            case BuildCache():
                failed = message.cache_id
                self._units.start(
                    lambda: self.builds.build(message),
                    lambda error: self._publish(failed, FailedEvent(0, error)),
                )
            case DropCache():
                self._engine.drop(message.cache_id)

    def cancel(self, channel_id: str) -> None:
        with self._lock:
            generation = self._generations.get(channel_id)
            if generation is not None:
                generation.is_cancelled = True
            self._engine.cancel(channel_id)

    def stop(self) -> None:
        """Cancel what runs, record its usage, stop."""
        self._engine.stop()
        self._units.stop()

    def _generate(self, message: Generate) -> None:
        generation = Generation(
            message, self._format.detokenizer(), lambda event: self._publish(message.request_id, event)
        )
        self._generations[message.request_id] = generation
        try:
            self._submit(generation, None)
        except AppError:
            del self._generations[message.request_id]
            raise

    def _submit(self, generation: Generation, rebuild: _Rebuild | None) -> None:
        """Give it to the engine, unless it was cancelled while it was not there."""
        message = generation.message
        is_stopped = False

        def on_token(token_id: int) -> bool:
            nonlocal is_stopped
            is_stopped = generation.push(token_id)
            return is_stopped

        def on_end(ending: Ending, error: AppError | None) -> None:
            if ending == Ending.PREFIX_MISSING:
                if rebuild is None:
                    self._rebuild_and_submit(generation)
                    return
                ending, error = Ending.FAILED, rebuild.error
            elif not is_stopped and ending != Ending.FAILED:
                generation.finish()
            self._start_end(generation, ending, error)

        sequence = Sequence(
            request_id=message.request_id,
            token_ids=list(message.token_ids),
            cache_id=message.cache_id,
            sampling=message.sampling,
            max_output_tokens=message.max_output_tokens,
            stop_token_ids=frozenset(self._format.eos_token_ids),
            on_token=on_token,
            on_end=on_end,
        )
        with self._lock:
            if not generation.is_cancelled:
                self._engine.submit(sequence)
                return
        self._start_end(generation, Ending.CANCELLED, None)

    def _rebuild_and_submit(self, generation: Generation) -> None:
        """The KV is not there (a restart, say): compute it again, unbilled, and submit once more, as its follower."""
        cache_id = generation.message.cache_id
        outcome = _Rebuild()

        def rebuild() -> None:
            if cache_id is None:
                raise RuntimeError("a request without a cache misses no prefix")
            self.builds.rebuild(cache_id, is_urgent=True, on_error=outcome.set)
            self._submit(generation, outcome)

        self._units.start(rebuild, lambda error: self._start_end(generation, Ending.FAILED, error))

    def _start_end(self, generation: Generation, ending: Ending, error: AppError | None) -> None:
        self._units.start(
            lambda: self._end(generation, ending, error), lambda failure: self._fail(generation, failure)
        )

    def _end(self, generation: Generation, ending: Ending, error: AppError | None) -> None:
        """One transaction ends the request: FINAL with what was produced, VOID where nothing was."""
        message, tokens = generation.message, generation.output_tokens
        self._generations.pop(message.request_id, None)
        is_owed = ending in (Ending.STOP, Ending.MAX_TOKENS) or tokens > 0
        with self._database.write() as session:
            at = instant(session, self._clock)
            if is_owed:
                is_ours = usage.finalise(session, message.request_id, message.attempt, tokens, at, ending)
            else:
                is_ours = usage.void(session, message.request_id, message.attempt, at, ending)
        if not is_ours:
            log.warning("usage was settled elsewhere", extra={"request_id": message.request_id})
            return
        reason = _REASONS.get(ending) if is_owed else None
        last = (
            FinishedEvent(generation.number(), reason)
            if reason is not None
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
