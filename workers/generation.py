"""The text side of one generation: tokens in as they are drawn, events out as their text becomes certain.

Knows no engine and no database. Not thread-safe: one thread at a time calls it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from core.errors import AppError, Internal
from core.messages import FinishReason, Generate, TokensEvent
from core.sampling import TokenLogprobs
from prompting.detokenizer import Detokenizer
from prompting.stop import StopMatcher

Emit = Callable[[TokensEvent], None]
Tell = Callable[[tuple[int, ...], str, int, tuple[TokenLogprobs, ...]], None]


class Generation:
    """A request's candidates, and what its events tell beside text: their numbers, and what needed no computing.

    implicit_cache_tokens: prompt tokens beyond the cache whose KV was there already; set by `start`. asked_at: on the
    monotonic clock, when the worker took it.
    """

    def __init__(self, message: Generate, detokenizer: Callable[[], Detokenizer], emit: Emit) -> None:
        self.message = message
        self.asked_at = time.monotonic()
        self.is_cancelled = False
        self.implicit_cache_tokens = 0
        self._emit = emit
        self._next_number = 0
        self.candidates = [
            Candidate(index, detokenizer(), StopMatcher(message.stop_sequences), self._tell)
            for index in range(message.candidate_count)
        ]

    @property
    def output_tokens(self) -> int:
        """Of all candidates, as billed."""
        return sum(candidate.output_tokens for candidate in self.candidates)

    def start(self, implicit_cache_tokens: int) -> None:
        """The engine has begun: so many prompt tokens beyond the cache need no computing."""
        self.implicit_cache_tokens = implicit_cache_tokens

    @property
    def has_ended(self) -> bool:
        return all(candidate.has_ended for candidate in self.candidates)

    @property
    def error(self) -> AppError | None:
        """Of the first candidate that failed."""
        return next((candidate.error for candidate in self.candidates if candidate.error is not None), None)

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """Why each candidate ended; one that never began was cancelled."""
        return tuple(candidate.reason or FinishReason.CANCELLED for candidate in self.candidates)

    def number(self) -> int:
        """The number of the next event of this request."""
        self._next_number += 1
        return self._next_number - 1

    def _tell(
        self, token_ids: tuple[int, ...], text: str, candidate: int, logprobs: tuple[TokenLogprobs, ...]
    ) -> None:
        self._emit(
            TokensEvent(self.number(), token_ids, text, candidate, logprobs, self.implicit_cache_tokens)
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """A token whose text is not certain yet, and how many characters were drawn before it."""

    token_id: int
    logprobs: TokenLogprobs | None
    drawn_before: int


class Candidate:
    """Holds back what may turn out to be a stop sequence or half a character.

    A token is emitted, and counted, once it contributes to emitted text. Tokens whose text lies wholly in the stop
    sequence are neither.
    """

    def __init__(self, index: int, detokenizer: Detokenizer, stops: StopMatcher, tell: Tell) -> None:
        self.output_tokens = 0
        self.reason: FinishReason | None = None  # why it ended
        self.error: AppError | None = None  # why it failed
        self._index = index
        self._detokenizer = detokenizer
        self._stops = stops
        self._is_stopped = False
        self._tell = tell
        self._held: deque[_Held] = deque()
        self._drawn_length = 0
        self._sent_length = 0

    @property
    def has_ended(self) -> bool:
        return self.reason is not None or self.error is not None

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Take the next token. True: a stop sequence is complete, draw no more."""
        text = self._detokenizer.push(token_id)
        self._held.append(_Held(token_id, logprobs, self._drawn_length))
        self._drawn_length += len(text)
        certain, self._is_stopped = self._stops.push(text)
        self._send(certain, self._contributing(certain))
        return self._is_stopped

    def finish(self, reason: FinishReason) -> None:
        """No more tokens come. Unless a stop sequence ended them, what was held back is certain now."""
        self.reason = reason
        if self._is_stopped:
            return
        certain, is_stopped = self._stops.push(self._detokenizer.finish())
        if is_stopped:
            self._send(certain, self._contributing(certain))
        else:
            self._send(certain + self._stops.flush(), list(self._held))

    def fail(self, error: AppError | None) -> None:
        """No more tokens come, and what was held back is not shown."""
        self.error = error or Internal("The engine failed.")

    def _contributing(self, text: str) -> list[_Held]:
        """The held tokens that begin before the end of the text that is now certain."""
        end = self._sent_length + len(text)
        tokens: list[_Held] = []
        while self._held and self._held[0].drawn_before < end:
            tokens.append(self._held.popleft())
        return tokens

    def _send(self, text: str, tokens: list[_Held]) -> None:
        if not tokens and not text:
            return
        self._sent_length += len(text)
        self.output_tokens += len(tokens)
        logprobs = tuple(token.logprobs for token in tokens if token.logprobs is not None)
        ids = tuple(token.token_id for token in tokens)
        self._tell(ids, text, self._index, logprobs)
