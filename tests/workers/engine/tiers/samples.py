"""Small arenas with random KV, manifests for it, and stores in a folder of the test's own."""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workers.engine.config import ModelShape
from workers.engine.keys import BlockKey, root_key
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.kv_file import KvFile
from workers.engine.tiers.manifest import KvFormat, Manifest

SHAPE = ModelShape(layers=2, kv_heads=2, head_size=4, context_tokens=4096)
FINGERPRINT = "words:weights"
INCARNATION = "inc_this"
PIECE_TOKENS = 3

Windows = list[tuple[int, int]]


@dataclass
class Sample:
    """One arena, what may be written from it, and where it lies there."""

    slabs: torch.Tensor
    manifest: Manifest
    windows: Windows

    @property
    def kv(self) -> torch.Tensor:
        """The KV as bytes, tokens in order: [layers, 2, kv heads, tokens, bytes]."""
        return raw(self.slabs, self.windows)


def kv_format(
    dtype: torch.dtype = torch.float32, *, fingerprint: str = FINGERPRINT, shape: ModelShape = SHAPE
) -> KvFormat:
    return KvFormat.of(fingerprint, dtype, shape)


def raw(slabs: torch.Tensor, windows: Windows) -> torch.Tensor:
    """Bytes, not numbers: a NaN is equal to itself here."""
    return torch.cat([slabs[:, :, :, start:stop] for start, stop in windows], dim=3).view(torch.uint8)


def arena(
    tokens: int, *, dtype: torch.dtype = torch.float32, shape: ModelShape = SHAPE, seed: int = 1
) -> torch.Tensor:
    """Every bit pattern there is, NaN and infinity too: what is stored is bytes."""
    size = (shape.layers, 2, shape.kv_heads, tokens, shape.head_size * dtype.itemsize)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, size, dtype=torch.uint8, generator=generator).view(dtype)


def manifest_of(
    tokens: int,
    *,
    form: KvFormat | None = None,
    namespace: bytes = b"salt",
    parent: BlockKey | None = None,
    position: int = 0,
    seed: int = 1,
    owner: str | None = None,
) -> Manifest:
    """Random tokens: whole blocks, or the last piece of "cache" where they are fewer than 64."""
    form = form or kv_format()
    shape = ModelShape(form.layers, form.kv_heads, form.head_size, 4096)
    root = root_key(namespace, form.fingerprint, form.dtype, shape)
    return Manifest.of(
        form,
        root=root,
        parent=root if parent is None else parent,
        position=position,
        token_ids=tuple(random.Random(seed).choices(range(50_000), k=tokens)),
        born_at=1_700_000_000,
        owner=("cache" if tokens < 64 else "") if owner is None else owner,
    )


def sample(tokens: int = PIECE_TOKENS, *, seed: int = 1) -> Sample:
    """The tokens lie from 1 on, in an arena with one more on each side."""
    return Sample(arena(tokens + 2, seed=seed), manifest_of(tokens, seed=seed), [(1, tokens + 1)])


def store_in(
    folder: Path, *, form: KvFormat | None = None, limit_bytes: int = 10**9, incarnation: str = INCARNATION
) -> DiskStore:
    return DiskStore(folder, form or kv_format(), limit_bytes=limit_bytes, incarnation=incarnation)


def written(store: DiskStore, given: Sample) -> KvFile:
    return store.write(given.manifest, given.slabs, given.windows)


def read_back(store: DiskStore, file: KvFile) -> torch.Tensor:
    """The file's KV as bytes, read into an arena of its own."""
    tokens = len(file.manifest.token_ids)
    slabs = arena(tokens, dtype=store.format.dtype, seed=99)
    store.read_into(file, slabs, [(0, tokens)])
    return raw(slabs, [(0, tokens)])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call
