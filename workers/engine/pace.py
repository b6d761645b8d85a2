"""How large a chunk of prefill a step may carry beside running answers, by measured time."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

_NEWEST = 5  # measurements that count, but for the longest of them, which something else on the machine may have made long
_FEWEST_TOKENS = 32


@dataclass(slots=True)
class Pace:
    """stretch: how much longer than a step of decode rows alone one with prefill may take, as a part of the former.

    At 2.2 a new token comes after three times the quiet time, with a fifth of noise after four times. A prefill beside answers takes
    nearly half as long again as alone, and more where small chunks are slower.
    """

    largest: int
    stretch: float
    _decode_s: dict[int, deque[float]] = field(default_factory=dict)  # by the number of rows
    _token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST))

    @property
    def token_s(self) -> float | None:
        """Seconds that a token of prefill takes, rather too many: it rises while a text grows. None until it was measured."""
        return sorted(self._token_s)[-2:][0] if self._token_s else None

    def chunk_tokens(self, decode_count: int) -> int:
        """Tokens of prefill for the next step: the largest chunk where nobody waits for a token or nothing was measured."""
        decode_s, token_s = self._decode_seconds(decode_count), self.token_s
        if decode_count == 0 or decode_s is None or token_s is None:
            return self.largest
        fitting = self.stretch * decode_s / token_s
        return int(min(self.largest, max(_FEWEST_TOKENS, fitting)))

    def observe(self, seconds: float, decode_count: int, prefill_tokens: int) -> None:
        """A step is done."""
        decode_s = self._decode_seconds(decode_count)
        if prefill_tokens == 0:
            self._decode_s.setdefault(decode_count, deque(maxlen=_NEWEST)).append(seconds)
        elif decode_s is not None:
            self._token_s.append(max(seconds - decode_s, 0.1 * seconds) / prefill_tokens)

    def _decode_seconds(self, count: int) -> float | None:
        """Of a step of so many decode rows alone, or of the number nearest to it that was measured; None where none was."""
        if count == 0:
            return 0.0
        if not self._decode_s:
            return None
        nearest = min(self._decode_s, key=lambda measured: abs(measured - count))
        return median(self._decode_s[nearest])
