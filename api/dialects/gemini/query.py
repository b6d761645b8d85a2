"""Query parameters: Google's system parameters on every method, and a method's own; any other is refused."""

import re

from starlette.requests import Request

from api.dialects.gemini.rejections import snake
from core.errors import InvalidArgument, NotSupported

# Read elsewhere (key), meaningless here, or harmless; all are documented for every Google API.
_SYSTEM = frozenset(
    {"key", "access_token", "alt", "$alt", "fields", "pretty_print", "quota_user", "callback", "$.xgafv"}
    | {"upload_type", "upload_protocol"}
)
_INTEGER = re.compile(r"[+-]?\d{1,10}", re.ASCII)
_INT32 = range(-(2**31), 2**31)
LARGEST_PAGE = 1000


def read_query(
    request: Request, *names: str, formats: frozenset[str] = frozenset({"json"})
) -> dict[str, str]:
    """Give a method's own parameters by their snake_case names; either spelling may come in."""
    found: dict[str, str] = {}
    for given, value in request.query_params.multi_items():
        name = snake(given)
        if name in names:
            found[name] = value
        elif name not in _SYSTEM:
            raise InvalidArgument(
                f'Invalid JSON payload received. Unknown name "{given[:100]}": Cannot bind query parameter. '
                f"Field '{given[:100]}' could not be found in request message.",
                field=given[:100],
            )
    alt = request.query_params.get("alt", "json")
    if alt not in formats:
        raise NotSupported(
            f"alt={alt[:20]!r} is not supported here. Use {' or '.join(sorted(formats))}.", field="alt"
        )
    return found


def read_page_size(query: dict[str, str], default: int) -> int:
    """0 and absence mean the default, more than the largest means the largest."""
    text = query.get("page_size", "") or "0"
    if not _INTEGER.fullmatch(text) or int(text) not in _INT32:
        raise InvalidArgument(
            f"Invalid value at 'page_size' (TYPE_INT32), \"{text[:20]}\"", field="page_size"
        )
    size = int(text)
    if size < 0:
        raise InvalidArgument(f"page_size must not be negative, but is {size}.", field="page_size")
    return min(size, LARGEST_PAGE) or default
