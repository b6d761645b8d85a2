"""The one secret file that all keyed hashing derives from. Losing it invalidates every API key, so it is never replaced."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from core.errors import SecretInvalid

_SIZE_BYTES = 32
_SALT = b"headstart root secret v1"


class RootSecret:
    """The root of all keyed hashing; only what `derive` returns is ever used."""

    def __init__(self, root: bytes) -> None:
        if len(root) != _SIZE_BYTES:
            raise SecretInvalid(f"The root secret must be {_SIZE_BYTES} bytes, not {len(root)}.")
        self._key = hmac.digest(_SALT, root, hashlib.sha256)  # HKDF, RFC 5869: extract

    def __repr__(self) -> str:
        return "RootSecret(…)"

    @classmethod
    def load_or_create(cls, path: Path) -> RootSecret:
        """Read the secret file, or make it (0600, whole or not at all) where there is none."""
        if not path.exists():
            _create(path)
        return cls(_read(path))

    def derive(self, purpose: str) -> bytes:
        """Give the 32-byte key of one purpose: "api-key-pepper", "kv-salt" or "page-token"."""
        return hmac.digest(self._key, purpose.encode() + b"\x01", hashlib.sha256)  # HKDF: expand, first block


def _create(path: Path) -> None:
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SIZE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a rename, fails where the name is taken: of two first starts one wins, both read it.
            os.link(staging, path)
        except FileExistsError:
            return
    finally:
        staging.unlink()
    _sync_folder(path.parent)


def _read(path: Path) -> bytes:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise SecretInvalid(
            f"The secret file {path} has mode {mode:04o}: others may read it. Run: chmod 600 {path}"
        )
    root = path.read_bytes()
    if len(root) != _SIZE_BYTES:
        raise SecretInvalid(
            f"The secret file {path} has {len(root)} bytes instead of {_SIZE_BYTES}. Put the original file back; "
            "removing it makes a new secret, with which no existing API key works."
        )
    return root


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
