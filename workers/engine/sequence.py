"""What the engine works on: the build of a cache's segment, and the token state of one request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from core.errors import AppError
from core.sampling import Sampling
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


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens and where their KV lies.

        [ prefix: shared segment | private segment | tail in its seat | next token, not computed yet ]

    token_ids grows with every token drawn; `computed` counts those whose KV is written. A long prompt goes to the private
    segment, and a full tail is moved there. on_token is told each drawn token and answers True to stop before it.
    """

    request_id: str
    token_ids: list[int]
    cache_id: str | None
    sampling: Sampling
    max_output_tokens: int
    stop_token_ids: frozenset[int]
    on_token: Callable[[int], bool]
    on_end: OnEnd
    prefix: Segment | None = None
    is_waiting_for_build: bool = False
    private: Segment | None = None
    seat: int | None = None
    tail_length: int = 0
    computed: int = 0
    output_count: int = 0
    prompt_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_count = len(self.token_ids)

    @property
    def prefix_length(self) -> int:
        return self.prefix.length if self.prefix is not None else 0

    @property
    def is_decoding(self) -> bool:
        return self.computed == len(self.token_ids) - 1 and self.output_count > 0

    def long_prompt_tokens(self, tail_capacity: int) -> int:
        """How many prompt tokens go to the private segment: all of a prompt that would crowd the tail, else none."""
        return self.prompt_count if self.prompt_count > tail_capacity // 2 else 0

    def tail_tokens(self, tail_capacity: int) -> int:
        """How much of its tail it can have written so far."""
        return min(len(self.token_ids) - self.long_prompt_tokens(tail_capacity), tail_capacity)

    def private_tokens(self, tail_capacity: int) -> int:
        """Room the private segment needs at most: a long prompt, and every tail that can fill up."""
        long_prompt = self.long_prompt_tokens(tail_capacity)
        in_tails = self.prompt_count - long_prompt + self.max_output_tokens
        return long_prompt + in_tails // tail_capacity * tail_capacity

    def row(self, budget: int, tail_capacity: int) -> Row:
        """The next tokens to compute: the token drawn last, or at most `budget` tokens of the prompt."""
        long_prompt = self.long_prompt_tokens(tail_capacity)
        is_long_part = self.computed < long_prompt
        stop = min(self.computed + budget, long_prompt if is_long_part else len(self.token_ids))
        shared = [self.prefix] if self.prefix is not None else []
        if not is_long_part and self.private is not None and self.private.length:
            shared.append(self.private)
        return Row(
            tuple(self.token_ids[self.computed : stop]),
            self.prefix_length + self.computed,
            reads=tuple(shared),
            seat=self.seat,
            tail_length=self.tail_length,
            target=self.private if is_long_part else None,
            wants_logits=stop == len(self.token_ids),
        )
