"""Room in the arena: what a build or a request finds there, what it is given, what it is refused, and what it leaves behind.

Called on the engine thread only.
"""

from enum import Enum, auto

from core.errors import AppError, ArenaFull, InvalidArgument
from workers.engine.arena import TailPool
from workers.engine.blocks import BLOCK_TOKENS, blocks_for
from workers.engine.config import EngineConfig
from workers.engine.copies import append, append_segment, append_tail
from workers.engine.kv_tier import KvTier
from workers.engine.node import Node
from workers.engine.segment import Segment, Segments
from workers.engine.sequence import Build, Pin, Sequence
from workers.engine.tree import PrefixTree


class Placing(Enum):
    """PLACED: it has its room. FILLING: another computes what it needs just now. FULL: there is no room now."""

    PLACED = auto()
    FILLING = auto()
    FULL = auto()


class Room:
    """Every hold on KV is taken and given back here."""

    def __init__(self, tree: PrefixTree, segments: Segments, tails: TailPool, config: EngineConfig) -> None:
        self._tree = tree
        self._segments = segments
        self._tails = tails
        self._config = config
        self._piece_count = 0

    def place_build(self, build: Build) -> Placing:
        """Pin what is there of its path, and give it room for the rest."""
        tree, tokens = self._tree, build.block_token_ids
        match = tree.match(tree.top(build.namespace), tokens)
        if match.filling is not None:
            return Placing.FILLING
        node = match.node
        tree.acquire(node)
        piece = self._segments.allocate(1) if build.piece_token_ids else None
        rest = tokens[node.end :]
        added = tree.add(node, rest) if rest and (piece or not build.piece_token_ids) else None
        if (build.piece_token_ids and piece is None) or (rest and added is None):
            if piece is not None:
                self._segments.free(piece)
            tree.release(node)
            return Placing.FULL
        if added is not None:
            tree.release(node)
            node = added
        tree.pin(node)
        self._piece_count += piece is not None
        build.node, build.added, build.piece = node, added, piece
        return Placing.PLACED

    def place_sequence(self, sequence: Sequence, *, may_allocate: bool) -> Placing:
        """Find what is there of its prompt, and give all its candidates room for the rest: all of it or nothing."""
        tree, pin = self._tree, sequence.pin
        start = tree.top(sequence.namespace) if pin is None else pin.node
        known = () if pin is None else pin.piece_token_ids
        tokens = (*known, *sequence.token_ids)
        blocks = tokens[: (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS]
        match = tree.match(start, blocks if sequence.namespace is not None else ())
        if match.filling is not None:
            return Placing.FILLING
        node = match.node
        tree.acquire(node)
        computed = max(0, node.end - sequence.prefix_length)
        rest = blocks[node.end - start.end :] if sequence.prompt_count - computed > BLOCK_TOKENS else ()
        in_nodes = max(computed, node.end + len(rest) - sequence.prefix_length)
        in_tails = sequence.prompt_count - in_nodes + sequence.max_output_tokens
        spill_tokens = in_tails // self._tails.capacity * self._tails.capacity
        added, spills = None, None
        can_allocate = may_allocate or not (rest or spill_tokens)
        if can_allocate and rest:
            added = tree.add(node, rest, is_private=sequence.namespace is None)
        if can_allocate and (added is not None or not rest):
            spills = self._segments.allocate_all([spill_tokens] * len(sequence.candidates))
        if spills is None:
            if added is not None:
                tree.release(added)
            tree.release(node)
            return Placing.FULL
        self._seat(sequence, added or node, spills)
        sequence.computed = computed
        if added is not None:
            tree.release(node)
            if node is start and pin is not None and pin.piece is not None:
                assert added.segment is not None, "it was added just now"
                append_segment(self._segments.arena, added.segment, pin.piece, 0, pin.piece.length)
        return Placing.PLACED

    def refuse_build(self, build: Build, waiting: int) -> AppError | None:
        """A new pin must fit the share of the arena that pins may take; a rebuild must fit the arena.

        waiting: blocks of builds that are promised room and have none so far.
        """
        pool = self._segments.arena.pool
        limit = pool.block_count if build.is_rebuild else self.pin_limit_blocks
        held = self.held_block_count + waiting
        if held + self.missing_blocks(build) > limit:
            return _arena_full("cache", len(build.token_ids), held, limit)
        return None

    def refuse_sequence(self, sequence: Sequence) -> AppError | None:
        """What can never fit beside the pins is refused; what does not fit now waits."""
        count, seats = len(sequence.candidates), self._config.max_running_requests
        if count > seats:
            return InvalidArgument(
                f"{count} candidates are more than run at once ({seats}). Ask for fewer.",
                field="candidate_count",
            )
        needed = self._tokens_at_most(sequence) // BLOCK_TOKENS
        if self.pinned_block_count + needed > self._segments.arena.pool.block_count:
            return self.no_room(sequence)
        return None

    def no_room(self, sequence: Sequence) -> AppError:
        return _arena_full(
            "request",
            self._tokens_at_most(sequence),
            self.held_block_count,
            self._segments.arena.pool.block_count,
        )

    @property
    def pin_limit_blocks(self) -> int:
        """Blocks that pins may take."""
        return int(self._segments.arena.pool.block_count * self._config.pinned_share)

    @property
    def pinned_block_count(self) -> int:
        return self._tree.pinned_block_count + self._piece_count

    @property
    def held_block_count(self) -> int:
        """Blocks that caches hold: pinned ones, and those of caches that have ended but are still read."""
        return self.pinned_block_count + self._tree.dead_block_count

    def missing_blocks(self, build: Build) -> int:
        """Blocks that its pin adds to those pinned already."""
        top = self._tree.top(build.namespace)
        return blocks_for(len(build.token_ids)) - self._tree.pinned_blocks(top, build.block_token_ids)

    def finish_build(self, build: Build) -> Pin:
        """It is computed: the pin keeps it from now on, and no longer the build."""
        self._tree.release(build.placed)
        recomputed = build.forwarded if build.is_rebuild else 0
        source = KvTier.REBUILT if recomputed else KvTier.DEVICE
        return Pin(build.cache_id, build.placed, build.piece, build.piece_token_ids, source, recomputed)

    def give_up_build(self, build: Build) -> None:
        """Give back what it was given, as far as no other needs it."""
        if build.node is not None:
            node, build.node = build.node, None
            self._tree.unpin(node, forget=False)
            if build.added is not None and build.added.pins == 0 and not build.added.is_dead:
                self._tree.forget(build.added)  # nobody was told of it, and nobody asked for it to be kept
            self._tree.release(node)
            self._free_piece(build.piece)

    def end_pin(self, pin: Pin) -> None:
        """Its cache is no more, and neither is its KV once nobody reads it, unless another cache of the project has it too."""
        pin.is_ended = True
        self._tree.unpin(pin.node, forget=True)
        if pin.piece_token_ids:  # where others pin the whole blocks: what was built upon the rest is gone too
            self._tree.forget_behind(pin.node, pin.piece_token_ids)
        self._free_ended(pin)

    def hold(self, sequence: Sequence, pin: Pin) -> None:
        sequence.kv_tier = pin.tier_for(sequence.asked_at)
        for each in sequence.candidates:
            each.pin = pin
            pin.readers += 1
            self._tree.acquire(pin.node)

    def share(self, sequence: Sequence, sibling: Sequence) -> None:
        """A sibling goes on from the computed prompt."""
        sibling.node = sequence.placed
        self._tree.acquire(sibling.node)
        assert sequence.seat is not None, "it is running"
        assert sibling.seat is not None, "it was given one together with it"
        slabs, count = self._tails.slabs, sequence.tail_length
        slabs[:, :, sibling.seat, :, :count] = slabs[:, :, sequence.seat, :, :count]
        if sequence.spill is not None and sibling.spill is not None:
            append_segment(self._segments.arena, sibling.spill, sequence.spill, 0, sequence.spill.length)
        sibling.tail_length, sibling.computed = sequence.tail_length, sequence.computed

    def spill(self, sequence: Sequence) -> None:
        """Move a full tail to the spill segment, which has had room for it since admission."""
        if sequence.spill is None or sequence.seat is None:
            raise RuntimeError("a tail is full and has nowhere to go")
        append_tail(self._segments.arena, self._tails, sequence.spill, sequence.seat, sequence.tail_length)
        sequence.tail_length = 0

    def leave(self, sequence: Sequence) -> None:
        """Keep the whole blocks of what a finished request has computed, where somebody may ask for them again."""
        if (
            sequence.namespace is None
            or sequence.node is None
            or sequence.seat is None
            or not sequence.node.is_ready
        ):
            return
        if sequence.pin is not None and sequence.pin.is_ended:
            return
        tree, arena, node = self._tree, self._segments.arena, sequence.node
        piece = sequence.piece
        known = sequence.pin.piece_token_ids if piece is not None and sequence.pin is not None else ()
        tokens = (*known, *sequence.token_ids[sequence.node_tokens : sequence.computed])
        blocks = tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS]
        match = tree.match(node, blocks)
        rest = blocks[match.node.end - node.end :]
        if node.is_dead or match.filling is not None or not rest:
            return
        added = tree.add(match.node, rest)
        if added is None or added.segment is None:
            return
        segments = [each for each in (piece, sequence.spill) if each is not None]
        begin, end = match.node.end - node.end, match.node.end - node.end + len(rest)
        for segment in segments:
            append_segment(
                arena, added.segment, segment, min(begin, segment.length), min(end, segment.length)
            )
            begin, end = max(0, begin - segment.length), max(0, end - segment.length)
        tail = self._tails.slabs[:, :, sequence.seat, :, begin:end]
        append(arena, added.segment, tail)
        tree.release(added)

    def give_back(self, sequence: Sequence) -> None:
        """All that a candidate holds: its seat, and its holds on KV."""
        if sequence.seat is not None:
            used = sequence.tail_tokens(self._tails.capacity) if sequence.node is not None else 0
            self._tails.give_back(sequence.seat, used)
            sequence.seat = None
        if sequence.spill is not None:
            self._segments.free(sequence.spill)
            sequence.spill = None
        if sequence.node is not None:
            node, sequence.node = sequence.node, None
            self._tree.release(node)
        if sequence.pin is not None:
            pin, sequence.pin = sequence.pin, None
            pin.readers -= 1
            self._tree.release(pin.node)
            self._free_ended(pin)

    def _seat(self, sequence: Sequence, node: Node, spills: list[Segment | None]) -> None:
        sequence.node = node
        for each, spill in zip(sequence.candidates, spills, strict=True):
            each.seat, each.spill = self._tails.take(), spill

    def _tokens_at_most(self, sequence: Sequence) -> int:
        """Tokens in whole blocks that it takes beside the pins where no automatic KV is there."""
        start = self._tree.top(sequence.namespace) if sequence.pin is None else sequence.pin.node
        known = () if sequence.pin is None else sequence.pin.piece_token_ids
        tokens = (*known, *sequence.token_ids)
        blocks = tokens[: (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS]
        if sequence.prompt_count <= BLOCK_TOKENS:
            blocks = ()
        found = self._tree.pinned_blocks(start, blocks) if sequence.namespace is not None else 0
        in_nodes = len(blocks) - found * BLOCK_TOKENS
        in_tails = sequence.prompt_count - max(0, len(blocks) - len(known)) + sequence.max_output_tokens
        spills = blocks_for(in_tails // self._tails.capacity * self._tails.capacity) * BLOCK_TOKENS
        return in_nodes + spills * len(sequence.candidates)

    def _free_ended(self, pin: Pin) -> None:
        if pin.is_ended and pin.readers == 0:
            self._free_piece(pin.piece)
            pin.piece = None

    def _free_piece(self, piece: Segment | None) -> None:
        if piece is not None:
            self._segments.free(piece)
            self._piece_count -= 1


def _arena_full(what: str, tokens: int, held_blocks: int, limit_blocks: int) -> ArenaFull:
    held, limit = held_blocks * BLOCK_TOKENS, limit_blocks * BLOCK_TOKENS
    return ArenaFull(
        f"No room for the KV of this {what}: it needs {tokens} tokens, and caches hold {held} of {limit}. "
        "Delete caches, wait for some to expire, or raise HEADSTART_ARENA_BYTES.",
        metadata={
            "quota": "arena_tokens",
            "requested": str(tokens),
            "in_use": str(held),
            "limit": str(limit),
        },
    )
