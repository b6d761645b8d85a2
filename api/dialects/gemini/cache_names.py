"""Names of caches as clients write them: cachedContents/{id}, or the id alone."""

import re

from core.errors import CacheNotFound

_ID = re.compile(r"[a-z0-9]{1,64}", re.ASCII)


def read_cache_id(name: str) -> str:
    """Give the id; what cannot be one is as absent as any other, and no database is asked (some refuse a NUL)."""
    cache_id = name.removeprefix("cachedContents/")
    if not _ID.fullmatch(cache_id):
        raise CacheNotFound("This cannot be the name of a cache.", field="cached_content")
    return cache_id
