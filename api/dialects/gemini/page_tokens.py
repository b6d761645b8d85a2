"""Page tokens: where a list goes on, signed for the project that may go on with it.

A token is made only when there is a next cache, and names it. Should every cache of that page expire before the page is
asked for, the named one is shown as it ended: clients fail on an empty page that a token led to.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from core.errors import InvalidArgument

PURPOSE = "page-token"  # what RootSecret.derive is given
_MAC_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Position:
    """after: creation instant and id of the last cache that was shown. next_id: the one that comes then."""

    after: tuple[datetime, str]
    next_id: str


def encode(key: bytes, project_id: str, position: Position) -> str:
    created_at, last_id = position.after
    microseconds = (created_at - _EPOCH) // timedelta(microseconds=1)
    body = json.dumps([microseconds, last_id, position.next_id], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_mac(key, project_id, body) + body).decode().rstrip("=")


def decode(key: bytes, project_id: str, token: str) -> Position:
    """Read a token that was made for this project; raise InvalidArgument for any other text."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid() from None
    mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, project_id, body)):
        raise _invalid()
    microseconds, last_id, next_id = json.loads(body)
    return Position((_EPOCH + timedelta(microseconds=microseconds), last_id), next_id)


def _mac(key: bytes, project_id: str, body: bytes) -> bytes:
    return hmac.digest(key, project_id.encode() + b"\0" + body, hashlib.sha256)[:_MAC_BYTES]


def _invalid() -> InvalidArgument:
    return InvalidArgument("The page token is invalid. Start the list again without one.", field="page_token")
