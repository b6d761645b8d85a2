"""Room in the arena: what a build or a request finds there, what it is given, what it is refused, and what it leaves behind.

Called on the engine thread only.
"""

from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain

from workers.engine.arena import TailPool
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.budget import Budget, where_it_begins, whole_blocks
from workers.engine.config import EngineConfig
from workers.engine.copies import append, append_segment, append_tail
from workers.engine.kv_tier import KvTier
from workers.engine.node import Node
from workers.engine.piece import Piece
from workers.engine.residence import Bringing, Residence
from workers.engine.segment import Segment, Segments
from workers.engine.sequence import Build, Pin, Sequence
from workers.engine.stored import Stored
from workers.engine.tree import PrefixTree


class Placing(Enum):
    """PLACED: it has its room. FILLING: what it needs is being computed or brought just now. FULL: there is no room now. LOST: what its
    cache pins has to be computed again."""

    PLACED = auto()
    FILLING = auto()
    FULL = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True)
class Left:
    """What a cache may have left in the tree that is not there as a whole: KV of these tokens, behind `top`, that nothing pins."""

    top: Node
    token_ids: tuple[int, ...]


_WAITING = {Bringing.COMING: Placing.FILLING, Bringing.FULL: Placing.FULL, Bringing.LOST: Placing.LOST}


class Room:
    """Every hold on KV is taken and given back here."""

    def __init__(
        self,
        tree: PrefixTree,
        segments: Segments,
        tails: TailPool,
        residence: Residence,
        config: EngineConfig,
    ) -> None:
        self._tree = tree
        self._segments = segments
        self._tails = tails
        self._residence = residence
        self._pieces: list[Piece] = []  # of all caches, the one that was used longest ago first
        self.budget = Budget(tree, segments, residence, config, self._pieces)
        tree.most_resident_pinned = self.budget.most_resident
        segments.make_room = self._make_room

    def claim_build(self, build: Build) -> Node | None:
        """Pin all of it, where nothing has to be computed or brought; else tell where what is there ends, or None: wait for that."""
        tokens = build.block_token_ids
        match = self._tree.match(self._tree.top(build.namespace), tokens)
        if match.filling is not None:
            return None
        node, piece = match.node, None
        if node.end == len(tokens) and build.piece_token_ids:
            piece = self._residence.find_piece(build.cache_id, node, build.piece_token_ids)
        if node.end == len(tokens) and (piece or not build.piece_token_ids):
            self._tree.acquire(node)
            self._pin(build, node, piece)
        return node

    def place_build(self, build: Build) -> Placing:
        """Pin what is there of its path, and give it room for the rest."""
        node = self.claim_build(build)
        if node is None:
            return Placing.FILLING
        if build.has_room:
            return Placing.PLACED
        rest = build.block_token_ids[node.end :]
        bringing = self._residence.bring(node.path())
        if bringing is not Bringing.READY:
            return _WAITING[bringing]
        return self._grow(build, node, rest)

    def _grow(self, build: Build, node: Node, rest: tuple[int, ...]) -> Placing:
        """Room for what is to be computed behind a node: whole blocks, and a piece where there is one."""
        tree, needs_piece = self._tree, bool(build.piece_token_ids)
        if not self.budget.may_pin(len(rest) // BLOCK_TOKENS + needs_piece):
            return Placing.FULL if self._residence.is_idle else Placing.FILLING
        tree.acquire(node)
        segment = self._segments.allocate(1) if needs_piece else None
        added = tree.add(node, rest) if rest and (segment or not needs_piece) else None
        if (needs_piece and segment is None) or (rest and added is None):
            if segment is not None:
                self._segments.free(segment)
            tree.release(node)
            return Placing.FULL
        if added is not None:
            tree.release(node)
            build.added = node = added
        piece = None
        if needs_piece:
            piece = Piece(build.piece_token_ids, segment, build.cache_id, node, used_at=node.used_at)
        self._pin(build, node, piece)
        return Placing.PLACED

    def _pin(self, build: Build, node: Node, piece: Piece | None) -> None:
        self._tree.pin(node)
        if piece is not None:
            self._pieces.append(piece)
        build.node, build.piece = node, piece

    def place_sequence(self, sequence: Sequence, *, may_allocate: bool) -> Placing:
        """Find what is there of its prompt, and give all its candidates room for the rest: all of it or nothing."""
        tree, pin = self._tree, sequence.pin
        node = self._find(sequence, may_allocate=may_allocate)
        if isinstance(node, Placing):
            return node
        start, blocks = where_it_begins(self._tree, sequence), whole_blocks(sequence)
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
        for each in sequence.candidates:
            self._read_pin(each)
        sequence.computed = computed
        if added is not None:
            tree.release(node)
            if node is start and pin is not None and pin.piece is not None:
                assert added.segment is not None, "it was added just now"
                assert pin.piece.segment is not None, "it was brought before"
                append_segment(self._segments.arena, added.segment, pin.piece.segment, 0, pin.piece.length)
        return Placing.PLACED

    def _find(self, sequence: Sequence, *, may_allocate: bool) -> Node | Placing:
        """The end of what is there of its prompt and can be read now; else why it must wait for that."""
        pin = sequence.pin
        if pin is not None:
            bringing = self._bring(sequence, pin.parts, may_allocate=may_allocate)
            if bringing is not Bringing.READY:
                return _WAITING[bringing]
            self._touch(pin)
        blocks = whole_blocks(sequence) if sequence.namespace is not None else ()
        match = self._tree.match(where_it_begins(self._tree, sequence), blocks)
        if match.filling is not None:
            sequence.wait_for(self._residence.slowest_tier([match.filling]))
            return Placing.FILLING
        return self._usable(sequence, match.node, may_allocate=may_allocate)

    def _bring(self, sequence: Sequence, parts: list[Stored], *, may_allocate: bool) -> Bringing:
        source = self._residence.slowest_tier(parts)
        bringing = self._residence.bring(parts, may_allocate=may_allocate)
        if bringing is Bringing.COMING:
            sequence.wait_for(source)
        return bringing

    def finish_build(self, build: Build) -> Pin:
        """It is computed: the pin keeps it from now on, and no longer the build."""
        self._tree.release(build.placed)
        self._residence.writes.keep(build.piece or build.placed)
        recomputed = build.forwarded if build.is_rebuild else 0
        source = KvTier.REBUILT if recomputed else KvTier.DEVICE
        return Pin(build.cache_id, build.placed, build.piece, source, recomputed)

    def give_up_build(self, build: Build) -> None:
        """Give back what it was given, as far as no other needs it."""
        if build.node is not None:
            node, build.node = build.node, None
            self._tree.unpin(node, forget=False)
            if build.added is not None and build.added.pins == 0 and not build.added.is_dead:
                self._tree.forget(build.added)  # nobody was told of it, and nobody asked for it to be kept
            self._tree.release(node)
            self._end_piece(build.piece)

    def end_pin(self, pin: Pin) -> None:
        """Its cache is no more, and neither is its KV once nobody reads it, unless another cache of the project has it too.

        Requests that have asked for it before and wait for room still get it.
        """
        pin.is_ended = True
        if pin.waiting == 0:
            self._forget_pin(pin)

    def lose_pin(self, pin: Pin) -> None:
        """Some of its KV is lost: let go of the rest, until a build pins it anew. Who reads it already goes on."""
        if pin.is_lost or (pin.is_ended and not pin.waiting):
            return
        if pin.is_ended:
            self._forget_pin(pin)
        else:
            self._tree.unpin(pin.node, forget=False)
        pin.is_lost = True
        if pin.piece is not None:  # a build makes another
            pin.piece.is_ended = True
            self._residence.discard(pin.piece)
        self._free_unread(pin)

    def left_of(self, item: Pin | Build) -> Left:
        """For when it ends before it is built again."""
        if isinstance(item, Build):
            return Left(self._tree.top(item.namespace), item.token_ids)
        tokens = tuple(chain.from_iterable(part.token_ids for part in item.parts))
        return Left(self._tree.top_of(item.node.root.key), tokens)

    def forget_left(self, left: Left) -> None:
        """Its cache is no more: what is there of it goes, as with any other cache."""
        blocks = left.token_ids[: len(left.token_ids) // BLOCK_TOKENS * BLOCK_TOKENS]
        match = self._tree.match(left.top, blocks)
        path = [*match.node.path(), *([match.filling] if match.filling is not None else [])]
        unpinned = next((node for node in path if node.pins == 0), None)
        if unpinned is not None:
            self._tree.forget(unpinned)
        elif match.node.end == len(blocks) < len(left.token_ids):
            self._tree.forget_behind(match.node, left.token_ids[len(blocks) :])

    def _forget_pin(self, pin: Pin) -> None:
        if pin.is_lost:
            return
        if pin.piece is not None:
            pin.piece.is_ended = True
            self._residence.discard(pin.piece)
        self._tree.unpin(pin.node, forget=True)
        if pin.piece_token_ids:  # where others pin the whole blocks: what was built upon the rest is gone too
            self._tree.forget_behind(pin.node, pin.piece_token_ids)
        self._free_unread(pin)

    def hold(self, sequence: Sequence, pin: Pin) -> None:
        """It will read this cache's KV, once it has room."""
        sequence.kv_tier = pin.tier_for(sequence.asked_at)
        for each in sequence.candidates:
            each.pin = pin
            pin.readers += 1
            pin.waiting += 1

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
        if node.is_dead or match.filling is not None or not (rest and match.node.is_ready):
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
            self._let_go(sequence, sequence.pin)

    def lose(self, node: Node) -> None:
        """It cannot be read any more, and what stands upon it is of no use."""
        if node.is_findable:
            self._tree.forget(node)

    def _usable(self, sequence: Sequence, node: Node, *, may_allocate: bool) -> Node | Placing:
        """The end of what is to be read of a path that is known: what is not in the arena is brought where that is worth while.

        Automatic KV that is not worth it is forgotten, so that it is computed anew.
        """
        absent = [each for each in node.path() if each.is_absent]
        if not absent:
            return node
        if self._residence.is_worth_loading(absent):
            return _WAITING[self._bring(sequence, [*node.path()], may_allocate=may_allocate)]
        if not sequence.recomputes:
            sequence.recomputes = True
            self._residence.count_recompute()
        end = absent[0].parent
        assert end is not None, "the top holds no KV"
        if absent[0].pins == 0:
            self._tree.forget(absent[0])
        return end

    def _touch(self, pin: Pin) -> None:
        if pin.piece is not None and pin.piece in self._pieces:
            pin.piece.used_at = pin.node.used_at
            self._pieces.remove(pin.piece)
            self._pieces.append(pin.piece)

    def _make_room(self, block_count: int) -> None:
        pool = self._segments.arena.pool
        wanted = pool.free_count + block_count
        self._tree.evict(block_count)
        self._residence.demote_pieces(self._pieces, max(0, wanted - pool.free_count))

    def _read_pin(self, sequence: Sequence) -> None:
        if sequence.pin is not None and not sequence.reads_pin:
            sequence.reads_pin = True
            self._tree.acquire(sequence.pin.node)
            self._wait_no_more(sequence.pin)

    def _let_go(self, sequence: Sequence, pin: Pin) -> None:
        sequence.pin = None
        pin.readers -= 1
        if sequence.reads_pin:
            sequence.reads_pin = False
            self._tree.release(pin.node)
        else:
            self._wait_no_more(pin)
        self._free_unread(pin)

    def _wait_no_more(self, pin: Pin) -> None:
        pin.waiting -= 1
        if pin.is_ended and pin.waiting == 0:
            self._forget_pin(pin)

    def _seat(self, sequence: Sequence, node: Node, spills: list[Segment | None]) -> None:
        sequence.node = node
        for each, spill in zip(sequence.candidates, spills, strict=True):
            each.seat, each.spill = self._tails.take(), spill

    def _free_unread(self, pin: Pin) -> None:
        if (pin.is_ended or pin.is_lost) and pin.readers == 0:
            self._end_piece(pin.piece)

    def _end_piece(self, piece: Piece | None) -> None:
        if piece is None or piece not in self._pieces:
            return
        self._pieces.remove(piece)
        piece.is_ended = piece.is_unread = True
        self._residence.discard(piece)
        if piece.segment is not None and not piece.transfers:
            self._segments.free(piece.segment)
            piece.segment = None
