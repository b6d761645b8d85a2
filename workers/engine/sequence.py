"""What the engine works on: the build of a cache's segment, and the token state of one request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from core.errors import AppError
from core.sampling import Sampling, TokenLogprobs
from workers.engine.segment import Segment
from workers.engine.step import Row


class Ending(StrEnum):
    """Why the engine is done with a build or a sequence."""

    BUILT = "BUILT"
    STOP = "STOP"
    MAX_TOKENS = "MAX_TOKENS"
    CANCELLED = "CANCELLED"
    PREFIX_MISSING = "PREFIX_MISSING"
    FAILED = "FAILED"


# Called on the engine thread, exactly once; the error is given with FAILED only.
OnEnd = Callable[[Ending, AppError | None], None]


@dataclass(slots=True, eq=False)
class Build:
    """Compute the KV of token_ids into a pinned segment that is known by cache_id once it is ready.

    is_rebuild: the pin was promised before, so its share of the arena is not asked again. is_urgent: somebody waits; a
    rebuild in the background becomes urgent when it is asked for. is_dropped: the cache ended meanwhile; only the
    followers, which asked before that, still get it.
    """

    cache_id: str
    token_ids: tuple[int, ...]
    listeners: list[OnEnd]
    is_rebuild: bool = False
    is_urgent: bool = True
    is_dropped: bool = False
    segment: Segment | None = None
    followers: list["Sequence"] = field(default_factory=list)

    def row(self, budget: int) -> Row:
        """The next chunk of at most `budget` tokens."""
        segment = self.placed
        chunk = self.token_ids[segment.length : segment.length + budget]
        return Row(chunk, segment.length, reads=(), target=segment, wants_logits=False)

    @property
    def placed(self) -> Segment:
        if self.segment is None:
            raise RuntimeError("a build was scheduled before it had room")
        return self.segment

    @property
    def is_complete(self) -> bool:
        return self.placed.length == len(self.token_ids)

    def end(self, ending: Ending, error: AppError | None = None) -> None:
        for on_end in self.listeners:
            on_end(ending, error)


# Told each drawn token, and its log probabilities where they were asked for; True stops before the next.
OnToken = Callable[[int, TokenLogprobs | None], bool]


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of a request's prompt and of one answer to it, and where their KV lies.

        [ prefix: shared | prompt segment | spill segment | tail in its seat | next token, not computed yet ]

    token_ids grows with every token drawn; `computed` counts those whose KV is written. A long prompt has a segment; a
    short one lies in the tail. A full tail is moved to the spill segment.

    A request for several candidates is one sequence with `siblings`, which have the same prompt and request id. They are
    given room together with it and stand still until it has computed the prompt; then they read its prompt segment, get a
    copy of its tail, and are sequences like any other.
    """

    request_id: str
    token_ids: list[int]
    cache_id: str | None
    sampling: Sampling
    max_output_tokens: int
    stop_token_ids: frozenset[int]
    on_token: OnToken
    on_end: OnEnd
    top_logprobs: int | None = None
    siblings: list["Sequence"] = field(default_factory=list)
    prefix: Segment | None = None
    is_waiting_for_build: bool = False
    prompt_segment: Segment | None = None
    spill: Segment | None = None
    seat: int | None = None
    tail_length: int = 0
    computed: int = 0
    prompt_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_count = len(self.token_ids)

    @property
    def candidates(self) -> list["Sequence"]:
        """Itself and those that wait for it."""
        return [self, *self.siblings]

    @property
    def answer(self) -> list[int]:
        return self.token_ids[self.prompt_count :]

    @property
    def output_count(self) -> int:
        return len(self.token_ids) - self.prompt_count

    @property
    def prefix_length(self) -> int:
        return self.prefix.length if self.prefix is not None else 0

    @property
    def segments(self) -> list[Segment]:
        """What it reads of the arena, oldest first."""
        return [s for s in (self.prefix, self.prompt_segment, self.spill) if s is not None]

    @property
    def is_decoding(self) -> bool:
        return self.computed == len(self.token_ids) - 1 and self.output_count > 0

    def long_prompt_tokens(self, tail_capacity: int) -> int:
        """How many prompt tokens need a segment: all of a prompt that would crowd the tail, else none."""
        return self.prompt_count if self.prompt_count > tail_capacity // 2 else 0

    def tail_tokens(self, tail_capacity: int) -> int:
        """How much of its tail it can have written so far."""
        return min(len(self.token_ids) - self.long_prompt_tokens(tail_capacity), tail_capacity)

    def spill_tokens(self, tail_capacity: int) -> int:
        """Room for every tail that can fill up."""
        in_tails = self.prompt_count - self.long_prompt_tokens(tail_capacity) + self.max_output_tokens
        return in_tails // tail_capacity * tail_capacity

    def row(self, budget: int, tail_capacity: int) -> Row:
        """The next tokens to compute: the token drawn last, or at most `budget` tokens of the prompt."""
        long_prompt = self.long_prompt_tokens(tail_capacity)
        is_long_part = self.computed < long_prompt
        stop = min(self.computed + budget, long_prompt if is_long_part else len(self.token_ids))
        target = self.prompt_segment if is_long_part else None
        return Row(
            tuple(self.token_ids[self.computed : stop]),
            self.prefix_length + self.computed,
            reads=tuple(s for s in self.segments if s is not target and s.length),
            seat=self.seat,
            tail_length=self.tail_length,
            target=target,
            wants_logits=stop == len(self.token_ids),
        )
