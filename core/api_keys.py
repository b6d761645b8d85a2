"""What an API key looks like and how one is checked. Where keys are stored, and what they may do, is not known here.

A key reads `hs_<id>_<secret><checksum>`: the id finds the row, the checksum tells a typing error without asking the
database (and lets secret scanners recognise a leaked key). The secret holds 178 random bits, so a keyed hash of the whole
key is enough: there is nothing to guess that a slow hash would protect.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from typing import NamedTuple

from core.ids import new_key_id

PEPPER = "api-key-pepper"  # the purpose that RootSecret.derive is given
_PREFIX = "hs"
_ID_PREFIX = "key_"
_SIGNS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SECRET_LENGTH = 30
_CHECKSUM_LENGTH = 6
_SHAPE = re.compile(
    rf"{_PREFIX}_(?P<id>[a-z0-9]{{24}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}}(?P<checksum>[0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)


class MintedKey(NamedTuple):
    """A new key. `shown` is given to its owner once and never stored; the row keeps `key_id` and `mac`."""

    key_id: str
    shown: str
    mac: bytes


def mint(pepper: bytes) -> MintedKey:
    """Make a new key."""
    key_id = new_key_id()
    secret = "".join(secrets.choice(_SIGNS) for _ in range(_SECRET_LENGTH))
    body = f"{_PREFIX}_{key_id.removeprefix(_ID_PREFIX)}_{secret}"
    shown = body + _checksum(body)
    return MintedKey(key_id, shown, _mac(pepper, shown))


def parse(shown: str) -> str | None:
    """Give the id of the row that a key claims to be; None where it is no key of ours."""
    match = _SHAPE.fullmatch(shown)
    if match is None or _checksum(shown[: match.start("checksum")]) != match["checksum"]:
        return None
    return _ID_PREFIX + match["id"]


def verify(pepper: bytes, shown: str, mac: bytes | None) -> bool:
    """Compare a key with the stored mac, in the same time whether there is one or not."""
    expected = mac if mac is not None else bytes(32)
    return hmac.compare_digest(_mac(pepper, shown), expected) and mac is not None


def _mac(pepper: bytes, shown: str) -> bytes:
    return hmac.digest(pepper, shown.encode(), hashlib.sha256)


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    signs = []
    for _ in range(_CHECKSUM_LENGTH):
        value, index = divmod(value, len(_SIGNS))
        signs.append(_SIGNS[index])
    return "".join(reversed(signs))
