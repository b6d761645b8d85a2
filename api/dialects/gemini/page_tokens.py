"""Where a list of caches goes on, as its page tokens say it.

A token is made only when there is a next cache, and names it. Should every cache of that page expire before the page is
asked for, the named one is shown as it ended: clients fail on an empty page that a token led to.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from api import page_tokens

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Position:
    """after: creation instant and id of the last cache that was shown. next_id: the one that comes then."""

    after: tuple[datetime, str]
    next_id: str


def encode(key: bytes, project_id: str, position: Position) -> str:
    created_at, last_id = position.after
    microseconds = (created_at - _EPOCH) // timedelta(microseconds=1)
    return page_tokens.encode(key, _about(project_id), [microseconds, last_id, position.next_id])


def decode(key: bytes, project_id: str, token: str) -> Position:
    """Read a token that was made for this project; raise InvalidArgument for any other text."""
    microseconds, last_id, next_id = page_tokens.decode(key, _about(project_id), token, "page_token")
    return Position((_EPOCH + timedelta(microseconds=microseconds), last_id), next_id)


def _about(project_id: str) -> list[str]:
    return ["cachedContents", project_id]
