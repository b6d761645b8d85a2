"""How large a chunk of prefill a step may carry beside running answers, by measured time."""

from dataclasses import dataclass

_WEIGHT = 0.4  # of the newest measurement in the running averages
_FEWEST_TOKENS = 32


@dataclass(slots=True)
class Pace:
    """stretch: how much longer than a step of decode rows alone one with prefill may take, as a part of the former.

    At 2 a new token comes after three times the quiet time at most, and a prefill beside answers takes half as long again
    as alone.
    """

    largest: int
    stretch: float
    decode_s: float | None = None
    token_s: float | None = None

    def chunk_tokens(self, decode_count: int) -> int:
        """Tokens of prefill for the next step: the largest chunk where nobody waits for a token or nothing was measured."""
        if decode_count == 0 or self.decode_s is None or self.token_s is None:
            return self.largest
        fitting = self.stretch * self.decode_s / self.token_s
        return int(min(self.largest, max(_FEWEST_TOKENS, fitting)))

    def observe(self, seconds: float, decode_count: int, prefill_tokens: int) -> None:
        """A step is done."""
        if prefill_tokens == 0:
            self.decode_s = _averaged(self.decode_s, seconds)
        elif decode_count == 0 or self.decode_s is not None:
            decode_s = self.decode_s or 0.0
            spent = seconds if decode_count == 0 else max(seconds - decode_s, 0.1 * seconds)
            self.token_s = _averaged(self.token_s, spent / prefill_tokens)


def _averaged(before: float | None, now: float) -> float:
    return now if before is None else before + _WEIGHT * (now - before)
