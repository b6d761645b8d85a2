"""What travels between the API and an engine: the only wire format of the transport.

Messages go to a worker, events come back on a channel. Events are numbered from 0 per channel, so that a lost one is
noticed. Token ids and parameters travel, never prompt text.
"""

from dataclasses import dataclass
from enum import StrEnum

from core.errors import AppError
from core.sampling import Sampling, TokenLogprobs


class FinishReason(StrEnum):
    STOP = "STOP"
    MAX_TOKENS = "MAX_TOKENS"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate one or more answers to a prompt whose first part may be a cache.

    token_ids: the tokens after the cache, or the whole prompt where cache_id is None; never empty.
    attempt: of the usage row that was reserved for it; a takeover raises it.
    project_id: whose KV it may read, and to whom belongs what it leaves.
    candidate_count: answers to draw, each from its own seed: the sampling's and those that follow it.
    top_logprobs: how many of the likeliest tokens to name beside each token's own logprob; None asks for none at all.
    reuses_kv: whether it may read automatic KV, and leave its own behind; the cache that it names is read in any case.
    """

    request_id: str
    attempt: int
    project_id: str
    cache_id: str | None
    token_ids: tuple[int, ...]
    sampling: Sampling
    max_output_tokens: int
    stop_sequences: tuple[str, ...]
    candidate_count: int = 1
    top_logprobs: int | None = None
    reuses_kv: bool = True


@dataclass(frozen=True, slots=True)
class BuildCache:
    """Compute and pin the KV of a PENDING cache, then activate it under this fencing token."""

    cache_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class DropCache:
    """Give back the KV of a cache that has ended. Requests that still read it finish first."""

    cache_id: str


Message = Generate | BuildCache | DropCache


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """Tokens of one candidate and the text they complete; text may be empty while a character is unfinished.

    logprobs: one for each token where they were asked for, else none.
    implicit_cache_tokens: prompt tokens beyond the named cache whose KV was there already; known before the first token, and
    the same in every event of a request.
    """

    number: int
    token_ids: tuple[int, ...]
    text: str
    candidate: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    implicit_cache_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What something costs, by meter, and what the same would have cost had nothing been cached; nano-USD."""

    meters: tuple[tuple[str, int], ...]
    without_cache_nano_usd: int

    @property
    def amount_nano_usd(self) -> int:
        return sum(amount for _, amount in self.meters)


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The generation has ended and its usage is recorded.

    reasons: why, for each candidate. cost: what is on record. implicit_cache_tokens: as in the events before it; there may
    have been none.
    """

    number: int
    reasons: tuple[FinishReason, ...]
    implicit_cache_tokens: int = 0
    cost: Cost = Cost((), 0)


@dataclass(frozen=True, slots=True)
class BuiltEvent:
    """The cache is ACTIVE."""

    number: int


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The request ended without its result. What it owes is recorded, unless the error is that it could not be."""

    number: int
    error: AppError


Event = TokensEvent | FinishedEvent | BuiltEvent | FailedEvent
LastEvent = FinishedEvent | BuiltEvent | FailedEvent
