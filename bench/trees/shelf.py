"""A folder of KV files in memory: what the engine writes there can be looked at, and fails as often as a walk wants it to."""

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.trees.marks import POISON
from bench.trees.wood import SHAPE
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.errors import DiskFull, FileRejected, Rejection, TierUnavailable
from workers.engine.tiers.kv_file import KvFile, file_name
from workers.engine.tiers.manifest import KvFormat, Manifest

Windows = Sequence[tuple[int, int]]
_DTYPE = torch.int64
_HEADER_BYTES = 100
_PAST_SECOND = 1.0  # that each read takes


@dataclass(frozen=True, slots=True)
class Kept:
    """kv: keys and values, [2, tokens]."""

    file: KvFile
    kv: torch.Tensor


class Shelf(DiskStore):
    """kept: by name, as in a folder. unremoved: names that should be gone, but removing them failed.

    fault_share: of all that it is asked for, what goes wrong.
    """

    def __init__(self, dice: random.Random, blocks: int, fault_share: float) -> None:
        block_bytes = BLOCK_TOKENS * SHAPE.kv_bytes_per_token(_DTYPE) + _HEADER_BYTES
        kv_format = KvFormat.of("", _DTYPE, SHAPE)
        super().__init__(Path(), kv_format, limit_bytes=blocks * block_bytes, incarnation="")
        self.kept: dict[Path, Kept] = {}
        self.unremoved: set[Path] = set()
        self.fault_share = fault_share
        self._dice = dice
        self._marks = itertools.count()

    @property
    def used_bytes(self) -> int:
        return sum(kept.file.size_bytes for kept in self.kept.values())

    def scan(self) -> list[KvFile]:
        self.unremoved.clear()
        files = [kept.file for kept in self.kept.values()]
        return sorted(files, key=lambda file: (file.manifest.position, file.path))

    def write(self, manifest: Manifest, slabs: torch.Tensor, windows: Windows) -> KvFile:
        self._fail_sometimes()
        size = manifest.payload_bytes + _HEADER_BYTES
        if self.used_bytes + size > self.limit_bytes:
            raise DiskFull(size, self.used_bytes, self.limit_bytes)
        kv = torch.cat([slabs[0, :, 0, start:stop, 0] for start, stop in windows], dim=1)
        if kv.shape[1] != len(manifest.token_ids):
            raise ValueError("the windows hold another number of tokens than the file")
        digest = hashlib.sha256(kv.numpy().tobytes()).digest()
        path = Path(file_name(manifest, digest))
        file = KvFile(path, size, manifest, digest, next(self._marks))
        self.kept[file.path] = Kept(file, kv)
        return file

    def read_into(self, file: KvFile, slabs: torch.Tensor, windows: Windows, *, first_token: int = 0) -> None:
        kept, position = self.kept.get(file.path), first_token
        is_broken = kept is None or kept.file.manifest != file.manifest or self._has_fault
        for start, stop in windows:
            end = position + stop - start
            slabs[0, :, 0, start:stop, 0] = POISON if kept is None or is_broken else kept.kv[:, position:end]
            position = end
        if position > len(file.manifest.token_ids):
            raise ValueError("the windows have room for more than the file holds")
        if is_broken:
            self.kept.pop(file.path, None)
            raise FileRejected(Rejection.CORRUPT, "as the dice would have it")
        self.read_rate.observe(file.size_bytes, _PAST_SECOND)

    def delete(self, *files: KvFile) -> None:
        paths = {file.path for file in files if self._has(file)}
        self.unremoved |= paths
        self._fail_sometimes()
        for path in paths:
            self.kept.pop(path, None)
            self.unremoved.discard(path)

    def _has(self, file: KvFile) -> bool:
        """Whether it is this file that has its name, and no later one."""
        kept = self.kept.get(file.path)
        return kept is not None and kept.file.number == file.number

    @property
    def _has_fault(self) -> bool:
        return self._dice.random() < self.fault_share

    def _fail_sometimes(self) -> None:
        self._is_available = not self._has_fault
        if not self._is_available:
            raise TierUnavailable("as the dice would have it")
