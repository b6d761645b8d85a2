"""How a next token is chosen: the parameters of one request, in plain numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of one request's draws.

    temperature: 0 is greedy. top_p: (0, 1], 1 keeps everything. top_k: 0 keeps everything.
    seed: any integer of 64 bits; each draw is keyed by (seed, position), so a request that is repeated or
    continued elsewhere draws the same tokens, whoever shares its steps.
    presence_penalty, frequency_penalty: [-2, 2], taken off the logit of a token that the answer has already, once and per
    occurrence. The prompt does not count.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def is_penalised(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probability under the model alone: before penalties, temperature, top-k and top-p.

    top: the likeliest tokens with theirs, in falling order, as many as were asked for.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()
