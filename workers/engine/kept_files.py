"""Which KV files there are, whose KV each holds, and when they end. Called on the engine thread."""

import time
from collections.abc import Callable
from concurrent.futures import Future

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.keys import BlockKey, block_keys, piece_key
from workers.engine.node import Node
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
    """

    def __init__(
        self,
        tree: PrefixTree,
        disk: DiskStore,
        moves: Moves,
        clock: Callable[[], float],
        on_bare: Callable[[Stored], None],
    ) -> None:
        self._lost: list[Stored] = []
        self._tree = tree
        self._disk = disk
        self._moves = moves
        self._clock = clock
        self._on_bare = on_bare
        self._copies: set[FileCopy] = set()
        self._pieces: dict[str, KvFile] = {}  # found at start, by cache
        self._undeleted: list[KvFile] = []

    def find(self) -> None:
        """At start: know what an earlier process left, and remove what is of no use."""
        try:
            files = self._disk.scan()
        except TierError:
            return  # the log has it
        nodes: dict[BlockKey, Node] = {}  # by each of their blocks
        for file in files:
            if file.manifest.owner:
                self._remove(self._pieces.pop(file.manifest.owner, None))
                self._pieces[file.manifest.owner] = file
            else:
                self._find_node(file, nodes)

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
        """No cache has asked for these of an earlier process."""
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
            elif not isinstance(part, Node) or part.pins:
                self._on_bare(part)
        copy.parts = []
        copy.is_doomed = True
        self.end_if_doomed(copy)

    def end_if_doomed(self, copy: FileCopy) -> None:
        """Remove a file that is to go, once nobody reads it."""
        if copy.is_doomed and not copy.load_count:
            self._remove(copy.file)

    def make_room(self, full: DiskFull, before: Stored) -> bool:
        """Remove files of automatic KV, the least used first, so that `before` fits; for automatic KV only older ones.

        False where that is not enough.
        """
        is_pinned = not isinstance(before, Node) or before.pins > 0
        removable = [
            c for c in self._copies if _is_automatic(c) and (is_pinned or _used_at(c) < before.used_at)
        ]
        missing = full.needed_bytes
        for copy in sorted(removable, key=lambda c: (_used_at(c), -c.file.manifest.position)):
            if missing <= 0:
                break
            missing -= copy.file.size_bytes
            self.drop(copy)
        return missing <= 0

    def take_lost(self) -> list[Stored]:
        """Parts of removed files that lie nowhere else, each told once."""
        lost, self._lost = self._lost, []
        return lost

    def retry(self) -> None:
        """Remove what could not be removed before."""
        undeleted, self._undeleted = self._undeleted, []
        for file in undeleted:
            self._remove(file)

    def _remove(self, file: KvFile | None) -> None:
        if file is None:
            return

        def end(outcome: "Future[None]") -> None:
            if outcome.exception() is not None:
                self._undeleted.append(file)

        self._moves.write(lambda: self._disk.delete(file), end)

    def _set(self, part: Stored, copy: FileCopy | None) -> None:
        with self._tree.changing(part):
            part.file = copy


def _is_automatic(copy: FileCopy) -> bool:
    return all(isinstance(part, Node) and not part.pins and not part.transfers for part in copy.parts)


def _used_at(copy: FileCopy) -> int:
    return max((part.used_at for part in copy.parts), default=0)
