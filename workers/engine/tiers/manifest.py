"""What a KV file says about itself: whose tokens it holds, where they stand, and which model computed them.

    { 8 bytes: length }{ JSON: manifest, "kv", "digests" }{ kv }{ digests: SHA-256 of kv, seal }
    |<------------------ header ------------------------>|

That is the safetensors format: "kv" is [layers, 2, kv heads, tokens, head size], "digests" is [2, 32] bytes. The seal is SHA-256 over
header and digest; it stands last because the digest is known last, and with it a file can be listed without reading its KV.
"""

import base64
import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any, Self

import torch

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import ModelShape
from workers.engine.keys import (
    KEY_BYTES,
    KV_FORMAT_VERSION,
    BlockKey,
    block_keys,
    pack_tokens,
    piece_key,
    unpack_tokens,
)
from workers.engine.tiers.errors import FileRejected, Rejection

LENGTH_BYTES = 8
DIGESTS_BYTES = 64

_DTYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class KvFormat:
    """All that must be equal for KV to be usable: who computed it, in which numbers, of which shape."""

    fingerprint: str
    dtype: torch.dtype
    layers: int
    kv_heads: int
    head_size: int

    @classmethod
    def of(cls, fingerprint: str, dtype: torch.dtype, shape: ModelShape) -> Self:
        return cls(fingerprint, dtype, shape.layers, shape.kv_heads, shape.head_size)

    @property
    def planes(self) -> int:
        """Slabs of the arena: one for each layer, K or V, and KV head."""
        return self.layers * 2 * self.kv_heads

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in one plane."""
        return self.head_size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Manifest:
    """root: the namespace's key. parent: the key of the block before the first token, or the root.

    position: of the first token. owner: the cache whose private last piece this is, or "" for whole blocks, which may be shared.
    born_at: when it was computed, in whole seconds since 1970: nothing that is not pinned may grow old. key: of the last block.
    """

    format: KvFormat
    root: BlockKey
    parent: BlockKey
    position: int
    token_ids: tuple[int, ...]
    owner: str
    born_at: int
    key: BlockKey

    @classmethod
    def of(
        cls,
        kv_format: KvFormat,
        *,
        root: BlockKey,
        parent: BlockKey,
        position: int,
        token_ids: tuple[int, ...],
        born_at: int,
        owner: str = "",
    ) -> Self:
        """Raises ValueError on what no file may hold: that would be a bug of the engine."""
        key = last_key(parent, token_ids, owner)
        manifest = cls(kv_format, root, parent, position, token_ids, owner, born_at, key)
        if not manifest.is_consistent():
            raise ValueError(
                f"{len(token_ids)} tokens at {position} of {owner or 'a shared path'} make no KV file"
            )
        return manifest

    @property
    def payload_bytes(self) -> int:
        return self.format.planes * len(self.token_ids) * self.format.row_bytes

    def is_consistent(self) -> bool:
        """Whether tokens, keys, position and owner belong together. Recomputes the keys."""
        is_piece = bool(self.owner)
        tokens = len(self.token_ids)
        return (
            (0 < tokens < BLOCK_TOKENS if is_piece else tokens > 0 and tokens % BLOCK_TOKENS == 0)
            and self.position >= 0
            and self.position % BLOCK_TOKENS == 0
            and (self.position == 0) == (self.parent == self.root)
            and self.key == last_key(self.parent, self.token_ids, self.owner)
        )


def last_key(parent: BlockKey, token_ids: tuple[int, ...], owner: str) -> BlockKey:
    """What a file of these tokens is named by. Fewer than 64 without an owner give `parent`, which no file may have."""
    if owner:
        return piece_key(parent, token_ids, owner)
    return [parent, *block_keys(parent, token_ids)][-1]


def encode(manifest: Manifest) -> bytes:
    """The header. The same manifest always gives the same bytes."""
    kv_format, size = manifest.format, manifest.payload_bytes
    shape = [kv_format.layers, 2, kv_format.kv_heads, len(manifest.token_ids), kv_format.head_size]
    document = {
        "__metadata__": {
            "format_version": str(KV_FORMAT_VERSION),
            "fingerprint": kv_format.fingerprint,
            "root": manifest.root.hex(),
            "parent": manifest.parent.hex(),
            "position": str(manifest.position),
            "token_ids": base64.b64encode(pack_tokens(manifest.token_ids)).decode(),
            "owner": manifest.owner,
            "born_at": str(manifest.born_at),
            "key": manifest.key.hex(),
        },
        "kv": {"dtype": _DTYPE_NAMES[kv_format.dtype], "shape": shape, "data_offsets": [0, size]},
        "digests": {"dtype": "U8", "shape": [2, 32], "data_offsets": [size, size + DIGESTS_BYTES]},
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns what follows
    return struct.pack("<Q", len(text)) + text


def decode(header: bytes) -> Manifest:
    """Read what `encode` wrote. Raises FileRejected on everything else, whatever it is."""
    try:
        document = json.loads(header[LENGTH_BYTES:].decode("ascii"))
        written = document["__metadata__"]["format_version"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise FileRejected(Rejection.CORRUPT, "the header cannot be read") from error
    if written != str(KV_FORMAT_VERSION):
        raise FileRejected(Rejection.STALE, "it has another file format")
    try:
        manifest = _manifest(document["__metadata__"], document["kv"])
        is_whole = encode(manifest) == header
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise FileRejected(Rejection.CORRUPT, "the header cannot be read") from error
    if not is_whole:
        raise FileRejected(Rejection.CORRUPT, "the header is not as it was written")
    return manifest


def seal(header: bytes, digest: bytes) -> bytes:
    """What ties a header to the KV behind it."""
    return hashlib.sha256(header + digest).digest()


def _manifest(metadata: dict[str, Any], kv: dict[str, Any]) -> Manifest:
    """Takes what it finds; that nothing was turned into something else on the way shows when it is encoded again."""
    layers, _, kv_heads, _, head_size = kv["shape"]
    if not all(type(size) is int and size > 0 for size in (layers, kv_heads, head_size)):
        raise ValueError("sizes are positive integers")
    return Manifest(
        format=KvFormat(_text(metadata["fingerprint"]), _DTYPES[kv["dtype"]], layers, kv_heads, head_size),
        root=_key(metadata["root"]),
        parent=_key(metadata["parent"]),
        position=int(metadata["position"]),
        token_ids=unpack_tokens(base64.b64decode(metadata["token_ids"], validate=True)),
        owner=_text(metadata["owner"]),
        born_at=int(metadata["born_at"]),
        key=_key(metadata["key"]),
    )


def _text(value: object) -> str:
    if not (isinstance(value, str) and value.isascii()):
        raise ValueError("fingerprints and ids are plain text")
    return value


def _key(text: str) -> BlockKey:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError("a key has 32 bytes")
    return BlockKey(key)
