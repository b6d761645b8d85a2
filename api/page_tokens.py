"""Page tokens: where a list goes on, signed so that nobody else's list, and no other one, goes on with it."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from core.errors import InvalidArgument

PURPOSE = "page-token"  # what RootSecret.derive is given
_MAC_BYTES = 16


def encode(key: bytes, about: Sequence[str], place: Sequence[str | int]) -> str:
    """about: what makes the list another than any else, and whose it is. place: where in it the next page begins."""
    body = json.dumps(list(place), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_mac(key, about, body) + body).decode().rstrip("=")


def decode(key: bytes, about: Sequence[str], token: str, field: str) -> list[Any]:
    """Read a token that was made for this list; raise InvalidArgument, which names the field, for any other text."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(field) from None
    mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, about, body)):
        raise _invalid(field)
    place: list[Any] = json.loads(body)
    return place


def _mac(key: bytes, about: Sequence[str], body: bytes) -> bytes:
    return hmac.digest(key, json.dumps(list(about)).encode() + b"\0" + body, hashlib.sha256)[:_MAC_BYTES]


def _invalid(field: str) -> InvalidArgument:
    return InvalidArgument("The page token is invalid here. Start the list again without one.", field=field)
