"""What caches and requests may take of the arena and of the tiers below it, and what they are told where it is too much.

Called on the engine thread only.
"""

from collections.abc import Sequence as Many

from core.errors import AppError, ArenaFull, InvalidArgument
from workers.engine.blocks import BLOCK_TOKENS, blocks_for
from workers.engine.config import EngineConfig
from workers.engine.node import Node
from workers.engine.piece import Piece
from workers.engine.residence import Residence
from workers.engine.segment import Segments
from workers.engine.sequence import Build, Sequence
from workers.engine.tree import PrefixTree


class Budget:
    """pieces: of all caches. most_resident: blocks of the arena that pins may take, where others need room there."""

    def __init__(
        self,
        tree: PrefixTree,
        segments: Segments,
        residence: Residence,
        config: EngineConfig,
        pieces: Many[Piece],
    ) -> None:
        self.most_resident = int(segments.arena.pool.block_count * config.pinned_share)
        self._tree = tree
        self._segments = segments
        self._residence = residence
        self._config = config
        self._pieces = pieces

    def refuse_build(self, build: Build, waiting: int) -> AppError | None:
        """A new cache must fit the share of each tier that caches may take; one that is built again must fit the arena.

        waiting: blocks of builds that are promised room and have none so far.
        """
        count = len(build.token_ids)
        in_arena = self._segments.arena.pool.block_count if build.is_rebuild else self.most_resident
        if blocks_for(count) > in_arena:
            return _arena_full("cache", count, self.held_block_count, in_arena)
        limit = in_arena if build.is_rebuild else self.pin_limit_blocks
        held = self.held_block_count + waiting
        if (
            not (build.is_rebuild and self._residence.limit_blocks)
            and held + self.missing_blocks(build) > limit
        ):
            return _arena_full("cache", count, held, limit)
        return None

    def refuse_sequence(self, sequence: Sequence) -> AppError | None:
        """What can never fit beside what cannot be moved is refused, as is what asks nothing; what does not fit now waits."""
        if not sequence.token_ids:
            return InvalidArgument(
                "There is nothing to answer: the prompt has no token behind the cache.", field="contents"
            )
        count, seats = len(sequence.candidates), self._config.max_running_requests
        if count > seats:
            return InvalidArgument(
                f"{count} candidates are more than run at once ({seats}). Ask for fewer.",
                field="candidate_count",
            )
        needed = self._tokens_at_most(sequence) // BLOCK_TOKENS
        own = [] if sequence.pin is None else sequence.pin.parts
        movable = sum(
            blocks_for(len(part.token_ids)) for part in own if part.has_copy or self._residence.limit_blocks
        )
        # What is about to be copied below the arena can be moved then.
        fixed = self.fixed_block_count if self._residence.limit_blocks == 0 else 0
        if fixed + movable + needed > self._segments.arena.pool.block_count:
            return self.no_room(sequence)
        return None

    def no_room(self, sequence: Sequence) -> AppError:
        return _arena_full(
            "request",
            self._tokens_at_most(sequence),
            self.held_block_count,
            self._segments.arena.pool.block_count,
        )

    def no_room_for(self, build: Build) -> AppError:
        """Caches that cannot be moved have all the room."""
        return _arena_full("cache", len(build.token_ids), self.held_block_count, self.pin_limit_blocks)

    @property
    def pinned_block_count(self) -> int:
        """Of all caches, wherever their KV lies."""
        return self._tree.counts.pinned + len(self._pieces)

    @property
    def resident_pinned_block_count(self) -> int:
        """Of all caches, in the arena."""
        return self._tree.counts.resident_pinned + sum(piece.segment is not None for piece in self._pieces)

    @property
    def fixed_block_count(self) -> int:
        """Of caches whose KV lies in the arena only: it can be neither evicted nor moved."""
        return self._tree.counts.fixed + sum(not piece.has_copy for piece in self._pieces)

    @property
    def held_block_count(self) -> int:
        """Blocks that caches hold: pinned ones, and those of caches that have ended but are still read."""
        return self.pinned_block_count + self._tree.counts.dead

    @property
    def pin_limit_blocks(self) -> int:
        """Blocks that caches may hold: a share of the slowest tier, where all of them lie."""
        below = int(self._residence.limit_blocks * self._config.pinned_share)
        return max(below, self.most_resident)

    def missing_blocks(self, build: Build) -> int:
        """Blocks that its pin adds to those pinned already."""
        top = self._tree.top(build.namespace)
        return blocks_for(len(build.token_ids)) - self._tree.pinned_blocks(top, build.block_token_ids)

    def may_pin(self, block_count: int) -> bool:
        """So much more KV that lies in the arena alone at first leaves others room there. One cache alone may take more, as one that is
        built again in a smaller arena does. Where nothing lies below, `refuse_build` has seen to it."""
        fixed = self.fixed_block_count
        return self._residence.limit_blocks == 0 or fixed == 0 or fixed + block_count <= self.most_resident

    def _tokens_at_most(self, sequence: Sequence) -> int:
        """Tokens in whole blocks that it takes beside the pins where no automatic KV is there."""
        start, blocks = where_it_begins(self._tree, sequence), whole_blocks(sequence)
        known = () if sequence.pin is None else sequence.pin.piece_token_ids
        if sequence.prompt_count <= BLOCK_TOKENS:
            blocks = ()
        found = self._tree.pinned_blocks(start, blocks) if sequence.namespace is not None else 0
        in_nodes = len(blocks) - found * BLOCK_TOKENS
        in_tails = sequence.prompt_count - max(0, len(blocks) - len(known)) + sequence.max_output_tokens
        spills = blocks_for(in_tails // self._config.tail_tokens * self._config.tail_tokens) * BLOCK_TOKENS
        return in_nodes + spills * len(sequence.candidates)


def where_it_begins(tree: PrefixTree, sequence: Sequence) -> Node:
    """Behind which node what a request may read of others begins: its cache's last, or the top."""
    return tree.top(sequence.namespace) if sequence.pin is None else sequence.pin.node


def whole_blocks(sequence: Sequence) -> tuple[int, ...]:
    """Its prompt behind the whole blocks of its cache, without the last token, which is always computed."""
    known = () if sequence.pin is None else sequence.pin.piece_token_ids
    tokens = (*known, *sequence.token_ids[: sequence.prompt_count])
    return tokens[: (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS]


def _arena_full(what: str, tokens: int, held_blocks: int, limit_blocks: int) -> ArenaFull:
    held, limit = held_blocks * BLOCK_TOKENS, limit_blocks * BLOCK_TOKENS
    return ArenaFull(
        f"No room for the KV of this {what}: it needs {tokens} tokens, and caches hold {held} of {limit}. "
        "Delete caches, wait for some to expire, or raise HEADSTART_ARENA_BYTES or HEADSTART_KV_DISK_BYTES.",
        metadata={
            "quota": "arena_tokens",
            "requested": str(tokens),
            "in_use": str(held),
            "limit": str(limit),
        },
    )
