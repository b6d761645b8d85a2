"""The KV of some tokens as bytes, in the order of a file, a few megabytes at a time: where the arena is host memory, the arena's own
bytes; where it is a device's, a staging buffer's.

A file goes plane by plane (layer, K or V, KV head), and within each through all its tokens; the arena holds a plane's tokens in windows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

# Large enough that a call costs nothing beside its bytes, small enough that they are still in a cache when they are hashed.
BATCH_BYTES = 4 << 20
_BATCH_PIECES = 1024  # as many as one call takes


class Span(NamedTuple):
    """Tokens of a file, and where the arena has them: from `start` on, or nowhere, if they are read past."""

    start: int | None
    tokens: int


class Piece(NamedTuple):
    """Tokens that lie together in one plane."""

    plane: int
    start: int | None
    tokens: int


class ArenaBytes(Protocol):
    """What a transfer does with each batch: fetch, then write the buffers; or room, then fill the buffers, then settle.

    At most two batches are in use at once: the third may be given the buffers of the first.
    """

    def fetch(self, batch: Sequence[Piece]) -> list[memoryview]:
        """The bytes of the pieces, to be read only."""
        ...

    def room(self, batch: Sequence[Piece]) -> list[memoryview]:
        """Buffers for the bytes of the pieces."""
        ...

    def settle(self, batch: Sequence[Piece]) -> None:
        """Return when what was put into the last `room` is in the arena."""
        ...


def arena_bytes(slabs: torch.Tensor) -> ArenaBytes:
    """slabs: [layers, 2, kv heads, arena tokens, head size], contiguous."""
    return HostBytes(slabs) if slabs.device.type == "cpu" else StagedBytes(slabs)


def batches(planes: int, spans: Sequence[Span], row_bytes: int) -> Iterator[list[Piece]]:
    """All pieces in the order of the file, in batches of at most BATCH_BYTES; row_bytes is one token's in one plane."""
    batch: list[Piece] = []
    room = BATCH_BYTES
    for piece in _pieces(planes, spans, max(1, BATCH_BYTES // row_bytes)):
        if batch and (piece.tokens * row_bytes > room or len(batch) == _BATCH_PIECES):
            yield batch
            batch, room = [], BATCH_BYTES
        batch.append(piece)
        room -= piece.tokens * row_bytes
    if batch:
        yield batch


def _pieces(planes: int, spans: Sequence[Span], most_tokens: int) -> Iterator[Piece]:
    for plane in range(planes):
        for span in spans:
            for done in range(0, span.tokens, most_tokens):
                start = None if span.start is None else span.start + done
                yield Piece(plane, start, min(most_tokens, span.tokens - done))


class HostBytes:
    """An arena in host memory: nothing is copied."""

    def __init__(self, slabs: torch.Tensor) -> None:
        self._planes = _by_plane(slabs).numpy()
        self._row_bytes = self._planes.shape[2]

    def fetch(self, batch: Sequence[Piece]) -> list[memoryview]:
        return [self._view(piece) for piece in batch]

    def room(self, batch: Sequence[Piece]) -> list[memoryview]:
        return [self._view(piece) for piece in batch]

    def settle(self, batch: Sequence[Piece]) -> None:
        pass

    def _view(self, piece: Piece) -> memoryview:
        if piece.start is None:
            return memoryview(bytearray(piece.tokens * self._row_bytes))
        return self._planes[piece.plane, piece.start : piece.start + piece.tokens].reshape(-1).data


class StagedBytes:
    """An arena on a device: bytes pass through two buffers, one of which is hashed while the other is filled.

    Copies have a stream of their own, so that they need not wait for what the engine computes meanwhile. They begin after all that it
    had been told before: the forward that wrote these tokens, and the last reader of the blocks that are written to.
    """

    def __init__(self, slabs: torch.Tensor) -> None:
        self._planes = _by_plane(slabs)
        self._row_bytes = self._planes.shape[2]
        is_cuda = slabs.device.type == "cuda"
        self._buffers = [torch.empty(BATCH_BYTES, dtype=torch.uint8, pin_memory=is_cuda) for _ in range(2)]
        self._stream = torch.cuda.Stream(slabs.device) if is_cuda else None  # type: ignore[no-untyped-call]
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.default_stream(slabs.device))

    def fetch(self, batch: Sequence[Piece]) -> list[memoryview]:
        self._buffers.reverse()
        with torch.cuda.stream(self._stream):
            for ours, theirs in self._pairs(batch):
                ours.copy_(theirs, non_blocking=self._stream is not None)
        self._wait()
        return self._filled(batch)

    def room(self, batch: Sequence[Piece]) -> list[memoryview]:
        self._buffers.reverse()
        return self._filled(batch)

    def settle(self, batch: Sequence[Piece]) -> None:
        with torch.cuda.stream(self._stream):
            for ours, theirs in self._pairs(batch):
                theirs.copy_(ours, non_blocking=self._stream is not None)
        self._wait()

    def _filled(self, batch: Sequence[Piece]) -> list[memoryview]:
        size = sum(piece.tokens for piece in batch) * self._row_bytes
        return [self._buffers[0].numpy().data[:size]]

    def _pairs(self, batch: Sequence[Piece]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Where each piece lies in the buffer, and where in the arena; a piece that is read past has no such place."""
        position = 0
        for piece in batch:
            end = position + piece.tokens * self._row_bytes
            if piece.start is not None:
                ours = self._buffers[0][position:end].view(piece.tokens, self._row_bytes)
                yield ours, self._planes[piece.plane, piece.start : piece.start + piece.tokens]
            position = end

    def _wait(self) -> None:
        """The buffer is used again, and blocks are shown to readers, as soon as this returns."""
        if self._stream is not None:
            self._stream.synchronize()


def _by_plane(slabs: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: [planes, arena tokens, bytes of a row]."""
    raw = slabs.view(torch.uint8)
    return raw.view(-1, raw.shape[-2], raw.shape[-1])
