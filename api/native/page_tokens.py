"""Page tokens of our own lists: the last row that was shown, signed for whoever asked for which list."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence

from core.errors import InvalidArgument

PURPOSE = "page-token"  # what RootSecret.derive is given
_MAC_BYTES = 16


def encode(key: bytes, asked: Sequence[str], last: Sequence[str]) -> str:
    """asked: what makes this list another than any else; last: the last row of the page."""
    body = json.dumps(list(last), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_mac(key, asked, body) + body).decode().rstrip("=")


def decode(key: bytes, asked: Sequence[str], token: str) -> list[str]:
    """Read a token that was made for this list; raise InvalidArgument for any other text."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid() from None
    mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, asked, body)):
        raise _invalid()
    last: list[str] = json.loads(body)
    return last


def _mac(key: bytes, asked: Sequence[str], body: bytes) -> bytes:
    about = json.dumps(["list", *asked]).encode()
    return hmac.digest(key, about + b"\0" + body, hashlib.sha256)[:_MAC_BYTES]


def _invalid() -> InvalidArgument:
    return InvalidArgument("pageToken is invalid here. Start the list again without one.", field="pageToken")
