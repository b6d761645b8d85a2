"""Which KV files there are, whose KV each holds, and when they end. Called on the engine thread."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.fair_order import fair_order
from workers.engine.keys import BlockKey, block_keys, piece_key
from workers.engine.node import Node, Root
from workers.engine.piece import Piece
from workers.engine.stored import FileCopy, Stored
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import DiskFull, TierError
from workers.engine.tiers.kv_file import KvFile
from workers.engine.tiers.moves import Moves
from workers.engine.tree import PrefixTree


class KeptFiles:
    """A file goes as soon as one of the parts it holds has ended, for it holds a customer's tokens.

    on_bare: told of each other part of it that a cache pins and that lies in the arena still.
    evicted_token_count: tokens whose files were removed to make room, since the start.
    """

    def __init__(
        self,
        tree: PrefixTree,
        disk: DiskStore,
        moves: Moves,
        clock: Callable[[], float],
        on_bare: Callable[[Stored], None],
    ) -> None:
        self.evicted_token_count = 0
        # By project: what was used last at that moment or before has given way, and would again.
        self._given_up_at: dict[Root, int] = {}
        self._lost: list[Stored] = []
        self._tree = tree
        self._disk = disk
        self._moves = moves
        self._clock = clock
        self._on_bare = on_bare
        self._copies: set[FileCopy] = set()
        self._doomed: set[FileCopy] = set()
        self._found: set[FileCopy] = set()  # at start, as long as caches may still ask for what is in them
        self._pieces: dict[str, KvFile] = {}  # found at start, by cache
        self._undeleted: list[KvFile] = []
        self._removing: list[KvFile] = []
        self._has_scanned = False

    def find(self) -> None:
        """At start: know what an earlier process left, and remove what is of no use."""
        files = self._scan()
        nodes: dict[BlockKey, Node] = {}  # by each of their blocks
        for file in files:
            if file.manifest.owner:
                self._remove(self._pieces.pop(file.manifest.owner, None))
                self._pieces[file.manifest.owner] = file
            else:
                self._find_node(file, nodes)

    @property
    def is_known(self) -> bool:
        """What is there is known: until then nothing is written, or it would never be counted."""
        return self._has_scanned

    def _scan(self) -> list[KvFile]:
        try:
            files = self._disk.scan()
        except TierError:  # the log has it
            return []
        self._has_scanned = True
        return files

    def _find_node(self, file: KvFile, nodes: dict[BlockKey, Node]) -> None:
        manifest = file.manifest
        is_first = manifest.position == 0
        parent = self._tree.top_of(manifest.root) if is_first else nodes.get(manifest.parent)
        if parent is not None and parent.last_key != manifest.parent:
            parent = self._tree.divide_behind(parent, manifest.parent)
            nodes.update(dict.fromkeys(parent.keys, parent))
        (key,) = block_keys(manifest.parent, manifest.token_ids[:BLOCK_TOKENS])
        if parent is None or key in parent.children:
            self._remove(file)
            return
        copy = FileCopy(file, [])
        made_at = self._clock() - max(0.0, time.time() - manifest.born_at)
        node = self._tree.add_absent(parent, manifest.token_ids, copy, made_at)
        copy.parts.append(node)
        self._copies.add(copy)
        self._found.add(copy)
        nodes.update(dict.fromkeys(node.keys, node))

    def find_piece(self, cache_id: str, node: Node, token_ids: tuple[int, ...]) -> Piece | None:
        """A cache's last tokens, where an earlier process has left them."""
        file = self._pieces.pop(cache_id, None)
        if file is None or file.manifest.key != piece_key(node.last_key, token_ids, cache_id):
            self._remove(file)
            return None
        piece = Piece(token_ids, None, cache_id, node)
        piece.file = FileCopy(file, [piece])
        self._copies.add(piece.file)
        return piece

    def forget_unclaimed_pieces(self) -> None:
        """No cache has asked for these of an earlier process, or will."""
        self._found.clear()
        for file in self._pieces.values():
            self._remove(file)
        self._pieces.clear()

    def add(self, file: KvFile, parts: list[Stored]) -> None:
        """It was written."""
        copy = FileCopy(file, list(parts))
        self._copies.add(copy)
        for part in parts:
            self._set(part, copy)

    def discard(self, part: Stored) -> None:
        """It has ended: no file may hold it."""
        copy = part.file
        if copy is not None:
            self._set(part, None)
            copy.parts.remove(part)
            self.drop(copy)

    def drop(self, copy: FileCopy) -> None:
        """Remove a file, whatever it holds."""
        if copy not in self._copies:
            return
        self._copies.remove(copy)
        for part in copy.parts:
            self._set(part, None)
            if part.is_lost:
                self._lost.append(part)
            elif is_pinned(part):
                self._on_bare(part)
        copy.parts = []
        copy.is_doomed = True
        self._doomed.add(copy)
        self.end_if_doomed(copy)

    def end_if_doomed(self, copy: FileCopy) -> None:
        """Remove a file that is to go, once nobody reads it."""
        if copy.is_doomed and not copy.load_count:
            self._doomed.discard(copy)
            self._remove(copy.file)

    def make_room(self, full: DiskFull, before: Stored) -> bool:
        """Remove files of automatic KV so that `before` fits, of the project that has most, the least used first; for automatic KV
        only older ones.

        False where that is not enough.
        """
        removable = [
            c
            for c in self._copies
            if _is_automatic(c) and (is_pinned(before) or _used_at(c) < before.used_at)
        ]
        missing = full.needed_bytes
        for copy in fair_order(removable, _root, lambda c: c.file.size_bytes, _age_key):
            if missing <= 0:
                break
            missing -= copy.file.size_bytes
            self.evicted_token_count += sum(len(part.token_ids) for part in copy.parts)
            self._note_given_up(_root(copy), _used_at(copy))
            self.drop(copy)
        if missing > 0 and isinstance(before, Node):
            self._note_given_up(before.root, before.used_at)
        return missing <= 0

    def may_keep(self, part: Stored) -> bool:
        """Whether to write a file of it is of any use: automatic KV that gives way at once only wears the disk."""
        return (
            not isinstance(part, Node) or part.pins > 0 or part.used_at > self._given_up_at.get(part.root, 0)
        )

    def _note_given_up(self, root: Root, used_at: int) -> None:
        self._given_up_at[root] = max(self._given_up_at.get(root, 0), used_at)

    def take_lost(self) -> list[Stored]:
        """Parts of removed files that lie nowhere else, each told once."""
        lost, self._lost = self._lost, []
        return lost

    def retry(self) -> None:
        """Remove what could not be removed before, and what an earlier process left, where that could not be read at start."""
        self._given_up_at.clear()
        for file in [] if self._has_scanned else self._scan():
            self._remove(file)
        self._moves.write(self._disk.remove_leftovers, lambda _: None)
        undeleted, self._undeleted = self._undeleted, []
        for file in undeleted:
            self._remove(file)

    def remove_automatic(self) -> None:
        """At the end, when nothing is under way: remove what no cache pins, and what could not be removed before.

        A transfer that was never begun has not ended, and keeps nothing now. What caches have not been asked about, as where a start
        fails, is left to the next.
        """
        automatic = (copy for copy in self._copies - self._found if not any(map(is_pinned, copy.parts)))
        copies = [copy.file for copy in (*automatic, *self._doomed)]
        with suppress(TierError):  # the log has it, and the next start finds them
            self._disk.remove_leftovers()
            self._disk.delete(*copies, *self._undeleted, *self._removing)

    def _remove(self, file: KvFile | None) -> None:
        if file is None:
            return

        self._removing.append(file)

        def end(outcome: "Future[None]") -> None:
            self._removing.remove(file)
            if outcome.exception() is not None:
                self._undeleted.append(file)

        self._moves.write(lambda: self._disk.delete(file), end)

    def _set(self, part: Stored, copy: FileCopy | None) -> None:
        with self._tree.changing(part):
            part.file = copy


def is_pinned(part: Stored) -> bool:
    """A cache has it."""
    return not isinstance(part, Node) or part.pins > 0


def _is_automatic(copy: FileCopy) -> bool:
    return all(not (is_pinned(part) or part.transfers) for part in copy.parts)


def _root(copy: FileCopy) -> Root:
    return next(part.root for part in copy.parts if isinstance(part, Node))


def _age_key(copy: FileCopy) -> tuple[int, int]:
    return _used_at(copy), -copy.file.manifest.position


def _used_at(copy: FileCopy) -> int:
    return max((part.used_at for part in copy.parts), default=0)
