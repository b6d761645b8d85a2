"""Parameters of our own routes: each known, given once, and fit to be looked up."""

from collections.abc import Sequence

from starlette.requests import Request

from core.errors import InvalidArgument

_LONGEST = 2_000


def read_query(request: Request, names: Sequence[str]) -> dict[str, str]:
    """Read the query; raises InvalidArgument for a parameter that the route does not have."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name == "key":  # the caller's
            continue
        if name not in names:
            raise InvalidArgument(
                f"{name[:64]!r} is no parameter of this route; it has {', '.join(names)}.",
                field=name[:64],
            )
        if name in query:
            raise InvalidArgument(f"{name} is given twice; give it once.", field=name)
        if "\0" in value:
            raise InvalidArgument(f"{name} has a NUL character; remove it.", field=name)
        if len(value) > _LONGEST:
            raise InvalidArgument(f"{name} is longer than {_LONGEST} characters.", field=name)
        query[name] = value
    return query
