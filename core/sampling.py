"""How a next token is chosen: the parameters of one request, in plain numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of one request's draws.

    temperature: 0 is greedy. top_p: (0, 1], 1 keeps everything. top_k: 0 keeps everything.
    seed: any integer of 64 bits; each draw is keyed by (seed, position), so a request that is repeated or
    continued elsewhere draws the same tokens, whoever shares its batch.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int
