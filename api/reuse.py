"""The X-Headstart-Reuse header: a request that says "off" neither reads automatic KV nor leaves its own behind."""

from starlette.requests import Request

from core.errors import InvalidArgument

_HEADER = "X-Headstart-Reuse"


def read_reuse(request: Request) -> bool:
    """Whether the request lets KV be reused, as it does by default; raise InvalidArgument for any word but on and off."""
    words = set(request.headers.getlist(_HEADER)) or {"on"}
    if words not in ({"on"}, {"off"}):
        shown = ", ".join(sorted(words))[:20]
        raise InvalidArgument(f"{_HEADER} must be 'on' or 'off', not {shown!r}.", field=_HEADER)
    return words == {"on"}
