"""What the engine works on: the build of a cache, and the token state of one request."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from core.errors import AppError
from core.sampling import Sampling, TokenLogprobs
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.kv_tier import KvTier
from workers.engine.node import Node
from workers.engine.piece import Piece
from workers.engine.segment import Segment
from workers.engine.step import Row
from workers.engine.stored import Stored

_QUICKEST_FIRST = list(KvTier)


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
class Pin:
    """A cache whose KV is there, in whatever tier: the path to `node`, then `piece`.

    readers: requests that hold it. waiting: those of them that have no room so far. is_ended: the cache is no more, and what is
    left of it goes with its last reader. is_lost: some of its KV has to be computed again, by a build.
    source: where its KV came from, at made_at. recomputed: tokens that a rebuild computed again, until somebody has read them.
    """

    cache_id: str
    node: Node
    piece: Piece | None
    source: KvTier = KvTier.DEVICE
    recomputed: int = 0
    readers: int = 0
    waiting: int = 0
    is_ended: bool = False
    is_lost: bool = False
    made_at: float = field(default_factory=time.monotonic)

    @property
    def piece_token_ids(self) -> tuple[int, ...]:
        return () if self.piece is None else self.piece.token_ids

    @property
    def length(self) -> int:
        return self.node.end + len(self.piece_token_ids)

    @property
    def parts(self) -> list[Stored]:
        """All of it, in order."""
        return [*self.node.path(), *([self.piece] if self.piece is not None else [])]

    def tier_for(self, asked_at: float) -> KvTier:
        """What its KV costs a request of that instant: who came before it was made has waited for it."""
        return self.source if asked_at < self.made_at else KvTier.DEVICE

    def take_recomputed(self) -> int:
        """The tokens computed again, for the first who asks; later ones have them for nothing."""
        taken, self.recomputed = self.recomputed, 0
        return taken


@dataclass(slots=True, eq=False)
class Build:
    """Compute what is not there of a cache's KV and pin it; known by cache_id once it is ready.

    namespace: whose KV it may share. is_rebuild: the pin was promised before, so its share of the arena is not asked again.
    is_urgent: somebody waits; a rebuild in the background becomes urgent when it is asked for. is_dropped: the cache ended
    meanwhile; only the followers, which asked before that, still get it. node: where its whole blocks end, given with room; added: the same, where it was
    not there before. full_since: when it found no room, by the monotonic clock. forwarded: tokens computed for it; the others were there.
    """

    cache_id: str
    namespace: bytes
    token_ids: tuple[int, ...]
    listeners: list[OnEnd]
    is_rebuild: bool = False
    is_urgent: bool = True
    is_dropped: bool = False
    node: Node | None = None
    added: Node | None = None
    piece: Piece | None = None
    full_since: float | None = None
    forwarded: int = 0
    followers: list["Sequence"] = field(default_factory=list)

    @property
    def block_token_ids(self) -> tuple[int, ...]:
        """Those that fill whole blocks."""
        return self.token_ids[: len(self.token_ids) // BLOCK_TOKENS * BLOCK_TOKENS]

    @property
    def piece_token_ids(self) -> tuple[int, ...]:
        return self.token_ids[len(self.block_token_ids) :]

    @property
    def has_room(self) -> bool:
        return self.node is not None

    @property
    def placed(self) -> Node:
        if self.node is None:
            raise RuntimeError("a build was scheduled before it had room")
        return self.node

    @property
    def computed(self) -> int:
        """Tokens whose KV is there, in whatever tier."""
        return self.placed.begin + _known(self.placed) + (0 if self.piece is None else _known(self.piece))

    @property
    def is_complete(self) -> bool:
        return self.computed == len(self.token_ids)

    def row(self, budget: int) -> Row:
        """The next chunk of at most `budget` tokens."""
        node, start = self.placed, self.computed
        path = node.path()
        piece = None if self.piece is None else self.piece.segment
        if node.is_ready:
            target, overflow = piece, None
        else:
            target, overflow = path.pop().segment, piece
        reads = tuple(each.segment for each in path if each.segment is not None)
        chunk = self.token_ids[start : start + budget]
        return Row(chunk, start, reads=reads, target=target, overflow=overflow, wants_logits=False)

    def end(self, ending: Ending, error: AppError | None = None) -> None:
        for on_end in self.listeners:
            on_end(ending, error)


def _known(part: Stored) -> int:
    return len(part.token_ids) if part.is_absent else part.length


# Told each drawn token, and its log probabilities where they were asked for; True stops before the next.
OnToken = Callable[[int, TokenLogprobs | None], bool]
# Told how many tokens behind the named cache need not be computed, before any token.
OnStart = Callable[[int], None]


def _ignore(_: int) -> None:
    """Nobody asked."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of a request's prompt and of one answer to it, and where their KV lies.

        [ path of nodes | piece of the cache | spill segment | tail in its seat | next token, not computed yet ]

    token_ids begin behind the named cache and grow with every token drawn; `computed` counts those whose KV is there. A
    prompt's whole blocks are computed into the last node of the path, unless they are few; the piece is read where the path
    ends with the cache's. A full tail is moved to the spill segment.

    namespace: whose automatic KV it may read and leave behind; None: nobody's. asked_at: on the monotonic clock, when the
    request was taken. reused: tokens of the prompt, behind the cache, that were there. kv_tier: the slowest tier of what it reads.
    recomputes: what was there of its prompt is computed all the same, for that is quicker than to read it.

    A request for several candidates is one sequence with `siblings`, which have the same prompt and request id. They are
    given room together with it and stand still until it has computed the prompt; then they read its path, get a copy of its
    tail, and are sequences like any other.
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
    namespace: bytes | None = None
    on_start: OnStart = _ignore
    siblings: list["Sequence"] = field(default_factory=list)
    pin: Pin | None = None
    reads_pin: bool = False
    is_waiting_for_build: bool = False
    node: Node | None = None
    spill: Segment | None = None
    seat: int | None = None
    tail_length: int = 0
    computed: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    reused: int = 0
    kv_tier: KvTier = KvTier.NONE
    recomputes: bool = False
    prompt_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_count = len(self.token_ids)

    def wait_for(self, tier: KvTier) -> None:
        """KV of its prompt is on its way from there. The slowest is told."""
        self.kv_tier = max(self.kv_tier, tier, key=_QUICKEST_FIRST.index)

    def begin(self) -> None:
        """It has its room, and what was there of its prompt counts as computed."""
        self.reused = self.computed
        if self.cache_id is None and not self.reused:
            self.kv_tier = KvTier.NONE
        elif self.kv_tier is KvTier.NONE:
            self.kv_tier = KvTier.DEVICE
        self.on_start(self.reused)

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
        """Tokens of the named cache."""
        return 0 if self.pin is None else self.pin.length

    @property
    def placed(self) -> Node:
        if self.node is None:
            raise RuntimeError("a request was scheduled before it had room")
        return self.node

    @property
    def piece(self) -> Segment | None:
        """The cache's last tokens, where no node of the path has them."""
        if self.pin is None or self.pin.piece is None or self.node is not self.pin.node:
            return None
        return self.pin.piece.segment

    @property
    def node_tokens(self) -> int:
        """How many of its own tokens lie in nodes."""
        return max(0, self.placed.end - self.prefix_length)

    @property
    def is_decoding(self) -> bool:
        return self.computed == len(self.token_ids) - 1 and self.output_count > 0

    def tail_tokens(self, tail_capacity: int) -> int:
        """How much of its tail it can have written so far."""
        return min(len(self.token_ids) - self.node_tokens, tail_capacity)

    def row(self, budget: int, tail_capacity: int) -> Row:
        """The next tokens to compute: the token drawn last, or at most `budget` tokens of the prompt."""
        node = self.placed
        path = node.path()
        target = None if node.is_ready else path.pop().segment
        segments = [*(each.segment for each in path), self.piece if target is None else None, self.spill]
        in_node = 0 if target is None else target.room
        room = in_node + tail_capacity - self.tail_length
        stop = min(self.computed + min(budget, room), len(self.token_ids))
        return Row(
            tuple(self.token_ids[self.computed : stop]),
            self.prefix_length + self.computed,
            reads=tuple(each for each in segments if each is not None and each.length),
            seat=self.seat,
            tail_length=self.tail_length,
            target=target,
            wants_logits=stop == len(self.token_ids),
        )
