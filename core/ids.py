"""Public ids. They are random and never reused, and the same string is the primary key inside."""

import secrets
import string

_LETTERS = string.ascii_lowercase + string.digits  # 36 signs: 24 of them hold 124 bits


def new_cache_id() -> str:
    return _random(24)


def new_request_id() -> str:
    return "gen_" + _random(24)


def new_project_id() -> str:
    return "proj_" + _random(24)


def new_key_id() -> str:
    return "key_" + _random(24)


def new_incarnation() -> str:
    """Name one life of one process: rows and channels of an earlier life are recognised by it."""
    return "inc_" + _random(24)


def cache_name(cache_id: str) -> str:
    """Name a cache as the Gemini API does."""
    return f"cachedContents/{cache_id}"


def _random(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))
