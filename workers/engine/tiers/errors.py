"""What can go wrong with a tier. None of it reaches a caller: KV that cannot be had is computed again."""
# ruff: noqa: N818 -- named by what is the case, as in core.errors

from enum import StrEnum


class Rejection(StrEnum):
    """Why a file was not used; the values are stable, since they are counted and shown."""

    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    STALE = "stale"  # of another model, number format, shape or file format
    FOREIGN = "foreign"  # whole, but not the tokens that it is taken for
    UNREADABLE = "unreadable"  # missing, no plain file, or the system cannot read it


class TierError(Exception):
    """A tier did not do what it was asked for."""


class FileRejected(TierError):
    """This file must not be used: throw away what was read from it, and compute it."""

    def __init__(self, reason: Rejection, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class DiskFull(TierError):
    """No room for this file, by the budget or by the disk: evict, or go without. Nothing was kept of it."""

    def __init__(self, needed_bytes: int, used_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{needed_bytes:,} bytes do not fit beside {used_bytes:,} of at most {limit_bytes:,}, or on the disk"
        )
        self.needed_bytes = needed_bytes
        self.used_bytes = used_bytes
        self.limit_bytes = limit_bytes


class TierUnavailable(TierError):
    """The folder cannot be made, read or written: go on without it."""
