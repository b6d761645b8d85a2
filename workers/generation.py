"""The text side of one generation: tokens in as they are drawn, events out as their text becomes certain.

Knows no engine and no database. Not thread-safe: one thread at a time calls it.
"""

from collections import deque
from collections.abc import Callable

from core.messages import Generate, TokensEvent
from prompting.detokenizer import Detokenizer
from prompting.stop import StopMatcher


class Generation:
    """Holds back what may turn out to be a stop sequence or half a character.

    A token is emitted, and counted, once it contributes to emitted text. Tokens whose text lies wholly in the stop
    sequence are neither.
    """

    def __init__(
        self, message: Generate, detokenizer: Detokenizer, emit: Callable[[TokensEvent], None]
    ) -> None:
        self.message = message
        self.output_tokens = 0
        self.is_cancelled = False
        self._next_number = 0
        self._detokenizer = detokenizer
        self._stops = StopMatcher(message.stop_sequences)
        self._emit = emit
        self._held: deque[tuple[int, int]] = deque()  # token id, characters drawn before it
        self._drawn_length = 0
        self._sent_length = 0

    def push(self, token_id: int) -> bool:
        """Take the next token. True: a stop sequence is complete, draw no more."""
        text = self._detokenizer.push(token_id)
        self._held.append((token_id, self._drawn_length))
        self._drawn_length += len(text)
        certain, is_stopped = self._stops.push(text)
        self._send(certain, self._contributing(certain))
        return is_stopped

    def finish(self) -> None:
        """No more tokens come, and it was no stop sequence that ended them: what was held back is certain now."""
        certain, is_stopped = self._stops.push(self._detokenizer.finish())
        if is_stopped:
            self._send(certain, self._contributing(certain))
        else:
            self._send(certain + self._stops.flush(), [token_id for token_id, _ in self._held])

    def number(self) -> int:
        """The number of the next event of this request."""
        self._next_number += 1
        return self._next_number - 1

    def _contributing(self, text: str) -> list[int]:
        """The held tokens that begin before the end of the text that is now certain."""
        end = self._sent_length + len(text)
        ids: list[int] = []
        while self._held and self._held[0][1] < end:
            ids.append(self._held.popleft()[0])
        return ids

    def _send(self, text: str, ids: list[int]) -> None:
        if ids or text:
            self._sent_length += len(text)
            self.output_tokens += len(ids)
            self._emit(TokensEvent(self.number(), tuple(ids), text))
