"""One KV file: written once, under a name that nobody looks for, and read into the arena; never mapped.

A mapping of a file that is cut short kills the process that computes on it. Here the length is checked before the first byte of KV is
read, and the digest after the last: until then nobody may see the blocks that were read into.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from workers.engine.tiers.arena_bytes import Span, arena_bytes, batches
from workers.engine.tiers.errors import FileRejected, Rejection
from workers.engine.tiers.manifest import (
    DIGESTS_BYTES,
    LENGTH_BYTES,
    KvFormat,
    Manifest,
    decode,
    encode,
    seal,
)

SUFFIX = ".kv"

_MOST_HEADER_BYTES = 64 << 20
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
# No link is followed, and a pipe under our name does not make us wait for its writer.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class KvFile:
    """A file whose header is right. digest: SHA-256 that its KV must have, which only reading it shows.

    number: which of the files of this name it is. Equal KV that is written again takes the name over.
    """

    path: Path
    size_bytes: int
    manifest: Manifest
    digest: bytes
    number: int = field(default=0, compare=False)


def file_name(manifest: Manifest, digest: bytes) -> str:
    return f"{manifest.key.hex()[:32]}-{digest.hex()}{SUFFIX}"


def file_bytes(manifest: Manifest) -> int:
    """How large the file will be."""
    return len(encode(manifest)) + manifest.payload_bytes + DIGESTS_BYTES


def write(path: Path, manifest: Manifest, slabs: torch.Tensor, windows: Sequence[tuple[int, int]]) -> bytes:
    """Write and sync a new file from the arena's `windows` [start, stop), which hold the manifest's tokens in order.

    Returns the digest of the KV. Raises OSError, and may then leave a part of the file.
    """
    spans = [Span(start, stop - start) for start, stop in windows]
    _check(spans, manifest, slabs)
    header = encode(manifest)
    source = arena_bytes(slabs)
    descriptor = os.open(path, _WRITE_FLAGS, 0o600)
    try:
        with Digest() as digest:
            _drain(descriptor, [memoryview(header)])
            for batch in batches(manifest.format.planes, spans, manifest.format.row_bytes):
                buffers = source.fetch(batch)
                digest.update(buffers)
                _drain(descriptor, buffers)
            kv_digest = digest.value()
        _drain(descriptor, [memoryview(kv_digest + seal(header, kv_digest))])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return kv_digest


def inspect(path: Path, kv_format: KvFormat) -> KvFile:
    """Check all of a file but its KV: length, header, seal, name, format, keys. Raises FileRejected."""
    with _opened(path) as descriptor:
        return _inspect(path, descriptor, kv_format)[0]


def read(
    file: KvFile, slabs: torch.Tensor, windows: Sequence[tuple[int, int]], *, first_token: int = 0
) -> None:
    """Read the KV from `first_token` of the file on into the arena's `windows` [start, stop): all that they have room for.

    The whole file is read and verified, also where only a part is kept. Raises FileRejected: what is in the windows is then rubbish.
    """
    room = [Span(start, stop - start) for start, stop in windows]
    rest = len(file.manifest.token_ids) - first_token - sum(span.tokens for span in room)
    spans = [span for span in (Span(None, first_token), *room, Span(None, rest)) if span.tokens]
    _check(spans, file.manifest, slabs)
    with _opened(file.path) as descriptor:
        found, header_bytes = _inspect(file.path, descriptor, file.manifest.format)
        if (found.manifest, found.digest) != (file.manifest, file.digest):
            raise FileRejected(Rejection.FOREIGN, "another file has taken its place")
        os.lseek(descriptor, header_bytes, os.SEEK_SET)
        target = arena_bytes(slabs)
        with Digest() as digest:
            for batch in batches(file.manifest.format.planes, spans, file.manifest.format.row_bytes):
                buffers = target.room(batch)
                _fill(descriptor, buffers)
                digest.update(buffers)
                target.settle(batch)
            is_right = digest.value() == file.digest
        if not is_right:
            raise FileRejected(Rejection.CORRUPT, "its KV is not what was written")


class Digest:
    """SHA-256 of what passes, computed beside the transfer: hashing lets go of the interpreter, and so does the disk."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, "kv-digest")
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def update(self, buffers: Sequence[memoryview]) -> None:
        """Hash these next. On return the buffers of all calls before this one may be used again."""
        self._wait()
        self._running = self._thread.submit(self._hash, buffers)

    def value(self) -> bytes:
        self._wait()
        return self._sha.digest()

    def _hash(self, buffers: Sequence[memoryview]) -> None:
        for buffer in buffers:
            self._sha.update(buffer)

    def _wait(self) -> None:
        if self._running is not None:
            self._running.result()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor to read from; whatever the system cannot do with it makes the file unreadable."""
    try:
        descriptor = os.open(path, _READ_FLAGS)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FileRejected(Rejection.UNREADABLE, error.strerror or str(error)) from error


def _inspect(path: Path, descriptor: int, kv_format: KvFormat) -> tuple[KvFile, int]:
    """The file and the length of its header. What is short comes before what is wrong: a cut file has a wrong end, too."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise FileRejected(Rejection.UNREADABLE, "it is no plain file")
    length = os.pread(descriptor, LENGTH_BYTES, 0)
    header_bytes = LENGTH_BYTES + int.from_bytes(length, "little")
    if len(length) < LENGTH_BYTES or header_bytes + DIGESTS_BYTES > status.st_size:
        raise FileRejected(Rejection.TRUNCATED, "it ends within its header")
    if header_bytes > _MOST_HEADER_BYTES:
        raise FileRejected(Rejection.CORRUPT, "its header is too long to be one")
    header = os.pread(descriptor, header_bytes, 0)
    manifest = decode(header)
    expected = header_bytes + manifest.payload_bytes + DIGESTS_BYTES
    if status.st_size != expected:
        reason = Rejection.TRUNCATED if status.st_size < expected else Rejection.CORRUPT
        raise FileRejected(reason, f"it has {status.st_size:,} bytes instead of {expected:,}")
    digests = os.pread(descriptor, DIGESTS_BYTES, expected - DIGESTS_BYTES)
    digest, written_seal = digests[:32], digests[32:]
    if written_seal != seal(header, digest):
        raise FileRejected(Rejection.CORRUPT, "its seal does not fit its header")
    if manifest.format != kv_format:
        raise FileRejected(Rejection.STALE, "it was computed by another model, or in another number format")
    if not manifest.is_consistent():
        raise FileRejected(Rejection.FOREIGN, "its keys do not follow from its tokens")
    if path.name != file_name(manifest, digest):
        raise FileRejected(Rejection.FOREIGN, "its name belongs to another file")
    return KvFile(path, expected, manifest, digest), header_bytes


def _check(spans: Sequence[Span], manifest: Manifest, slabs: torch.Tensor) -> None:
    """Raise ValueError where windows, file and arena do not fit together: that would be a bug of the engine."""
    tokens, form = len(manifest.token_ids), manifest.format
    arena_tokens = slabs.shape[3]
    if any(span.tokens < 0 for span in spans) or sum(span.tokens for span in spans) != tokens:
        raise ValueError(f"windows {list(spans)} do not make {tokens} tokens")
    if any(span.start is not None and not 0 <= span.start <= arena_tokens - span.tokens for span in spans):
        raise ValueError(f"windows {list(spans)} reach beyond an arena of {arena_tokens} tokens")
    if (slabs.dtype, *slabs.shape) != (
        form.dtype,
        form.layers,
        2,
        form.kv_heads,
        arena_tokens,
        form.head_size,
    ):
        raise ValueError(f"an arena of {slabs.dtype} {list(slabs.shape)} does not hold {form}")


def _fill(descriptor: int, buffers: list[memoryview]) -> None:
    while buffers:
        count = os.readv(descriptor, buffers[:_MOST_BUFFERS])
        if count == 0:  # it was longer when its length was checked
            raise FileRejected(Rejection.TRUNCATED, "it was cut while it was read")
        buffers = _after(buffers, count)


def _drain(descriptor: int, buffers: list[memoryview]) -> None:
    while buffers:
        buffers = _after(buffers, os.writev(descriptor, buffers[:_MOST_BUFFERS]))


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left when `count` bytes of the buffers are through."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []
