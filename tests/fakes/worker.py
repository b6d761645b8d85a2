"""The other side of the transport, without a model: says what it is told to say, and keeps the database as a worker does."""

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from billing import usage
from billing.cost import cost_of_request
from caching import lifecycle
from core.clock import Clock, instant
from core.errors import AppError, Cancelled, DeadlineExceeded
from core.messages import (
    BuildCache,
    BuiltEvent,
    Cost,
    DropCache,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Generate,
    Message,
    TokensEvent,
)
from core.sampling import TokenLogprobs
from core.transport.local import LocalTransport
from models.placement import Holder, Tier
from models.session import Database


class Piece(NamedTuple):
    token_ids: tuple[int, ...]
    text: str
    candidate: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass
class Script:
    """What happens to the next messages. `error` comes after the pieces; `hold_before` names the piece to wait at."""

    pieces: tuple[Piece | tuple[tuple[int, ...], str], ...] = (((1,), "Hello"), ((2, 3), " world"))
    reason: FinishReason = FinishReason.STOP
    error: AppError | None = None
    hold_before: int | None = None
    build_error: AppError | None = None
    hold_builds: bool = False
    hold_built: bool = False  # after the cache has become ACTIVE, before that is told
    refusal: AppError | None = None
    implicit_cache_tokens: int = 0  # of the prompt, found by the engine


@dataclass
class WorkerDouble:
    """Runs each message in a thread of its own. Whatever holds goes on when `release` is set, or is cancelled."""

    transport: LocalTransport
    database: Database
    clock: Clock
    script: Script = field(default_factory=Script)
    sent: list[Message] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    is_holding: bool = False
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def _holder(self) -> Holder:
        return Holder(self.transport.incarnation, Tier.RAM)

    def __post_init__(self) -> None:
        self.transport.connect(self._handle, self.cancelled.append)

    @property
    def generated(self) -> list[Generate]:
        return [message for message in self.sent if isinstance(message, Generate)]

    def reset(self) -> None:
        """Forget what was told and what was heard."""
        self.script = Script()
        self.sent.clear()
        self.cancelled.clear()
        self.release.clear()

    def end(self) -> None:
        """Let everything that holds go on, and wait until nothing runs any more."""
        self.release.set()
        while self._threads:
            thread = self._threads.pop()
            thread.join(timeout=10)
            assert not thread.is_alive(), "a message never ended: neither released nor cancelled"

    def _handle(self, message: Message) -> None:
        if self.script.refusal is not None:
            raise self.script.refusal
        self.sent.append(message)
        if not isinstance(message, DropCache):
            work = self._generate if isinstance(message, Generate) else self._build
            thread = threading.Thread(target=work, args=(message, self.script))
            self._threads.append(thread)
            thread.start()

    def _hold(self, channel_id: str) -> None:
        self.is_holding = True
        while not self.release.wait(0.002) and channel_id not in self.cancelled:
            pass
        self.is_holding = False

    def _generate(self, message: Generate, script: Script) -> None:
        channel_id, number, output_tokens = message.request_id, 0, 0
        reused = script.implicit_cache_tokens
        for index, piece in enumerate(script.pieces):
            if index == script.hold_before:
                self._hold(channel_id)
            if channel_id in self.cancelled:
                break
            event = TokensEvent(number, *Piece(*piece), reused)
            self.transport.publish(channel_id, event)
            number += 1
            output_tokens += len(piece[0])
        reason = FinishReason.CANCELLED if channel_id in self.cancelled else script.reason
        cost = Cost((), 0)
        with self.database.write() as session:
            at = instant(session, self.clock)
            if output_tokens or script.error is None:
                usage.finalise(
                    session,
                    channel_id,
                    message.attempt,
                    output_tokens,
                    at,
                    reason,
                    implicit_cache_tokens=reused,
                )
                cost = cost_of_request(session, message.project_id, channel_id)
            else:
                usage.void(session, channel_id, message.attempt, at, script.error.code)
        if script.error is not None and reason is not FinishReason.CANCELLED:
            self.transport.publish(channel_id, FailedEvent(number, script.error))
        else:
            reasons = (reason,) * message.candidate_count
            self.transport.publish(channel_id, FinishedEvent(number, reasons, reused, cost))

    def _build(self, message: BuildCache, script: Script) -> None:
        if script.hold_builds:
            self._hold(message.cache_id)
        error = script.build_error
        if message.cache_id in self.cancelled:
            error = Cancelled("The build was cancelled.")
        with self.database.write() as session:
            if error is not None:
                lifecycle.fail(session, self.clock, message.cache_id, error.code)
            elif not lifecycle.activate(
                session, self.clock, message.cache_id, message.fencing_token, self._holder
            ):
                error = DeadlineExceeded(
                    "The cached content expired before it was built. Give it a longer ttl."
                )
        if script.hold_built:
            self.release.wait(10)
        self.transport.publish(message.cache_id, BuiltEvent(0) if error is None else FailedEvent(0, error))
