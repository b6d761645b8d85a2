"""What is metered. A closed list: an unknown meter is an error, never a free one."""

from enum import StrEnum


class Meter(StrEnum):
    """The things a project pays for, in the order in which reports list them.

    The parts never overlap: a token is written into a cache once, and in a prompt either read, from the cache that was
    named or because its KV was there anyhow, or computed as input.
    """

    CACHE_WRITE_TOKENS = "cache_write_tokens"
    CACHE_STORAGE_TOKEN_SECONDS = "cache_storage_token_seconds"  # noqa: S105 - no secret
    CACHE_READ_TOKENS = "cache_read_tokens"
    IMPLICIT_CACHE_READ_TOKENS = "implicit_cache_read_tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"


# What a request can come to owe: a class of requests is refused while one of its meters has no price.
CREATE_METERS = (Meter.CACHE_WRITE_TOKENS, Meter.CACHE_STORAGE_TOKEN_SECONDS)
GENERATE_METERS = (
    Meter.CACHE_READ_TOKENS,
    Meter.IMPLICIT_CACHE_READ_TOKENS,
    Meter.INPUT_TOKENS,
    Meter.OUTPUT_TOKENS,
)
READ_METERS = (Meter.CACHE_READ_TOKENS, Meter.IMPLICIT_CACHE_READ_TOKENS)
