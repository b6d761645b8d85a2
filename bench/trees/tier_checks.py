"""What must hold of KV in all its tiers, told from who holds it and from the texts that it stands for."""

from collections.abc import Iterable, Sequence as Sequence_
from itertools import chain

import torch

from bench.trees.expectations import check_counts
from bench.trees.marks import are_equal, held, marks_of
from bench.trees.shelf import Shelf
from bench.trees.violation import require
from bench.trees.works import Works
from workers.engine.node import Node
from workers.engine.piece import Piece
from workers.engine.segment import Segment
from workers.engine.sequence import Build, Pin
from workers.engine.stored import FileCopy, Stored, Transfer


def check_all(works: Works, builds: list[Build], owners: Sequence_[bytes]) -> None:
    """Between two turns. Raise RuntimeError or Violation."""
    works.tree.check_integrity()
    pins = _pins(works)
    pieces = _pieces(works, builds, pins)
    parts: list[Stored] = [*works.tree.alive, *pieces]
    transfers = {transfer for part in parts for transfer in part.transfers}
    _check_holders(works, builds, pins, pieces, transfers, owners)
    for pin in pins:
        for part in pin.parts:
            is_kept = part.is_ready or part.transfers or (part.segment is None and part.has_copy)
            require(bool(is_kept) or part.is_lost, "KV of a cache is neither there nor coming nor lost")
    _check_host(works, parts)
    _check_marks(works, [part for part in parts if part.is_findable], owners)
    if works.shelf is not None:
        _check_files(works, works.shelf, parts)
    if works.moves.count == 0:
        require(not transfers, "a copy has ended, and still holds KV in place")


def _pins(works: Works) -> list[Pin]:
    """That hold their KV."""
    all_pins = {*works.scheduler.pins, *(s.pin for s in works.open if s.pin is not None)}
    return [pin for pin in all_pins if not pin.is_lost and (not pin.is_ended or pin.waiting)]


def _pieces(works: Works, builds: list[Build], pins: list[Pin]) -> list[Piece]:
    works.pieces = [p for p in works.pieces if p.segment is not None or p.has_copy or p.transfers]
    being_built = [build.piece for build in builds]
    held_by_pins = [pin.piece for pin in pins]
    return list({p for p in (*works.pieces, *being_built, *held_by_pins) if p is not None})


def _check_holders(
    works: Works,
    builds: list[Build],
    pins: list[Pin],
    pieces: list[Piece],
    transfers: set[Transfer],
    owners: Sequence_[bytes],
) -> None:
    for piece in pieces:
        copied = [transfer for transfer in transfers if piece in transfer.parts]
        require(set(copied) == set(piece.transfers), "a copy of a cache's last tokens is counted wrong")
    placed = [build.node for build in builds if build.node is not None]
    readers = [s.node for s in works.open if s.node is not None]
    readers += [s.pin.node for s in works.open if s.pin is not None and s.reads_pin]
    spills = [s.spill for s in works.open if s.spill is not None]
    own = [*spills, *(piece.segment for piece in pieces if piece.segment is not None)]
    check_counts(
        works.tree,
        works.segments,
        tops=[works.tree.top(owner) for owner in owners],
        read=[*readers, *placed],
        pinned=[*(pin.node for pin in pins), *placed],
        copied=[part for transfer in transfers for part in transfer.parts if isinstance(part, Node)],
        others=sum(segment.block_count for segment in own),
    )


def _check_host(works: Works, parts: list[Stored]) -> None:
    if works.host is None:
        return
    segments = {part.host for part in parts if part.host is not None}
    unknown = works.host.segments.alive - segments
    require(segments <= works.host.segments.alive, "KV is said to lie in host memory that is free")
    require(len(unknown) <= min(1, works.moves.count), "host memory is taken that nobody holds")


def _check_marks(works: Works, parts: Iterable[Stored], owners: Sequence_[bytes]) -> None:
    """Wherever KV lies, it is that of its text."""
    host = None if works.host is None else works.host.segments.arena
    for part in parts:
        node = part.node if isinstance(part, Piece) else part
        assert isinstance(node, Node), "KV is that of a node or of a piece"
        text = tuple(chain.from_iterable(each.token_ids for each in part.path()))
        marks = marks_of(text, owners.index(node.root.key))[part.begin :]
        if part.segment is not None:
            kv = held(works.arena, part.segment.filled())
            require(are_equal(kv, marks[: part.length]), "the KV of another text stands in the arena")
        if part.host is not None and host is not None:
            kv = held(host, _of(part.host, len(marks)))
            require(are_equal(kv, marks), "the KV of another text stands in host memory")
        if part.file is not None and works.shelf is not None:
            _check_file(works.shelf, part, part.file, marks)


def _of(segment: Segment, length: int) -> list[tuple[int, int]]:
    return segment.windows.of(0, length)


def _check_file(shelf: Shelf, part: Stored, copy: FileCopy, marks: torch.Tensor) -> None:
    kept = shelf.kept.get(copy.file.path)
    first = part.begin - copy.file.manifest.position
    if kept is not None:  # else a read has failed that nobody has heard of so far
        kv = kept.kv[:, first : first + len(marks)]
        require(first >= 0 and are_equal(kv, marks), "the KV of another text stands in a file")


def _check_files(works: Works, shelf: Shelf, parts: Iterable[Stored]) -> None:
    copies = {part.file for part in parts if part.file is not None}
    for copy in copies:
        tokens = chain.from_iterable(part.token_ids for part in copy.parts)
        require(all(part.file is copy for part in copy.parts), "a part does not know its file")
        require(tuple(tokens) == copy.file.manifest.token_ids, "a file holds other tokens than its parts")
        require(all(part.is_findable for part in copy.parts), "a file holds what has ended")
    if works.moves.count == 0 and not works.awaits_claims:
        known = {copy.file.path for copy in copies}
        require(known <= shelf.kept.keys(), "a file is gone that KV is said to lie in")
        require(shelf.kept.keys() - shelf.unremoved <= known, "a file is left that nobody knows")
