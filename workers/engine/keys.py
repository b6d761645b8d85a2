"""Block keys: what 64 tokens at one place of one path are called by, so that equal beginnings meet and no others do.

A key is SHA-256 over tagged, length-prefixed fields. It chains from the root to the last block, and so stands for all tokens before
it, for whose tokens they are, and for everything that decides what their KV is. It is equal in every process.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NewType

import torch

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import ModelShape

BlockKey = NewType("BlockKey", bytes)

KEY_BYTES = 32
TOKEN_BYTES = 4
# To be raised with every change of what KV means or how a file holds it: all earlier keys and files are then unknown.
KV_FORMAT_VERSION = 1


def root_key(
    namespace: bytes,
    fingerprint: str,
    dtype: torch.dtype,
    shape: ModelShape,
    *,
    format_version: int = KV_FORMAT_VERSION,
    block_tokens: int = BLOCK_TOKENS,
) -> BlockKey:
    """The key before the first block. `namespace` is a project's secret salt: without it no key can be guessed."""
    return _hash(
        b"root",
        (b"format_version", str(format_version).encode()),
        (b"namespace", namespace),
        (b"fingerprint", fingerprint.encode()),
        (b"dtype", str(dtype).encode()),
        (b"layers", str(shape.layers).encode()),
        (b"kv_heads", str(shape.kv_heads).encode()),
        (b"head_size", str(shape.head_size).encode()),
        (b"block_tokens", str(block_tokens).encode()),
    )


def block_keys(parent: BlockKey, token_ids: Sequence[int]) -> list[BlockKey]:
    """One key for each whole block of `token_ids`, which follow the block called `parent`; what is left over has none."""
    packed = pack_tokens(token_ids)
    size = BLOCK_TOKENS * TOKEN_BYTES
    keys: list[BlockKey] = []
    for end in range(size, len(packed) + 1, size):
        parent = _hash(b"block", (b"parent", parent), (b"tokens", packed[end - size : end]))
        keys.append(parent)
    return keys


def piece_key(parent: BlockKey, token_ids: Sequence[int], owner: str) -> BlockKey:
    """The name of a cache's private last piece. It is nobody's parent, and differs for two owners of equal tokens."""
    return _hash(
        b"piece", (b"parent", parent), (b"tokens", pack_tokens(token_ids)), (b"owner", owner.encode())
    )


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Fixed width, little endian, so that no two lists of ids give the same bytes. Raises ValueError on what is no id."""
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise ValueError(f"token ids are integers from 0 to 2^32 - 1: {error}") from error


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """What `pack_tokens` was given. Raises ValueError where the length is no multiple of an id's."""
    if len(packed) % TOKEN_BYTES:
        raise ValueError(f"{len(packed)} bytes are no whole number of token ids")
    return struct.unpack(f"<{len(packed) // TOKEN_BYTES}I", packed)


def _hash(tag: bytes, *fields: tuple[bytes, bytes]) -> BlockKey:
    """Lengths before contents and a name beside each value: no field can run into its neighbour or pass for another."""
    parts = [struct.pack("<I", len(tag)), tag]
    for name, value in fields:
        parts += (struct.pack("<II", len(name), len(value)), name, value)
    return BlockKey(hashlib.sha256(b"".join(parts)).digest())
