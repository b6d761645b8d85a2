"""The Idempotency-Key header: a customer's own name for a create, so that sending it again makes no second cache."""

import re
from typing import Any

from starlette.requests import Request

from caching.idempotency import Idempotency
from core.errors import InvalidArgument

_HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def read_idempotency(request: Request, body: dict[str, Any]) -> Idempotency | None:
    """Read the header, if it is there; raise InvalidArgument for one that is no key."""
    key = request.headers.get(_HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidArgument(
            "An Idempotency-Key has 1 to 255 characters of visible ASCII, without spaces; a UUID is one.",
            field="Idempotency-Key",
        )
    return Idempotency.of(key, body)
