"""Every error a caller or an operator can meet: one class a code. No HTTP status here; a dialect maps the codes.

Codes are stable for ever, texts may change. An error also travels between processes: `to_wire` and `from_wire`.
"""
# ruff: noqa: N818 -- a class is named like its code: cache_expired is CacheExpired

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class AppError(Exception):
    """What went wrong, in words for the caller: the field it is about, and what to do."""

    code: ClassVar[str]

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.retry_after_seconds = retry_after_seconds


class InvalidArgument(AppError):
    """The request itself is wrong; `violations` lists each (field, description)."""

    code = "invalid_argument"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after_seconds: float | None = None,
        violations: tuple[tuple[str, str], ...] | None = None,
    ) -> None:
        super().__init__(message, field=field, metadata=metadata, retry_after_seconds=retry_after_seconds)
        if violations is None:
            violations = ((field, message),) if field is not None else ()
        self.violations = violations


class BodyTooLarge(AppError):
    code = "body_too_large"


class RouteNotFound(AppError):
    code = "route_not_found"


class MethodNotAllowed(AppError):
    code = "method_not_allowed"


class NotSupported(AppError):
    """A field or feature that this server does not have; the message names it."""

    code = "not_supported"


# Keys and projects


class KeyMissing(AppError):
    code = "key_missing"


class KeyInvalid(AppError):
    code = "key_invalid"


class BearerInvalid(AppError):
    code = "bearer_invalid"


class ScopeMissing(AppError):
    code = "scope_missing"


class KeyNotFound(AppError):
    code = "key_not_found"


class ProjectNotFound(AppError):
    code = "project_not_found"


class ProjectExists(AppError):
    code = "project_exists"


# Caches


class CacheNotFound(AppError):
    """No such cache, or somebody else's: the two cannot be told apart."""

    code = "cache_not_found"


class CacheExpired(CacheNotFound):
    code = "cache_expired"


class CacheDeleted(CacheNotFound):
    code = "cache_deleted"


class CacheModelRetired(CacheNotFound):
    code = "cache_model_retired"


class CacheModelMismatch(AppError):
    code = "cache_model_mismatch"


class CacheFieldConflict(AppError):
    """A request repeats beside the cache what the cache already carries."""

    code = "cache_field_conflict"


class CacheTooSmall(AppError):
    code = "cache_too_small"


class CacheTooLarge(AppError):
    code = "cache_too_large"


class CachePrefixMismatch(AppError):
    code = "cache_prefix_mismatch"


class CacheQuota(AppError):
    """A project has as much as it may; metadata: quota, limit, in_use, requested."""

    code = "cache_quota"


class SpendLimit(AppError):
    """A limit of a project or a key leaves no room this month; metadata: quota, month, limit, in_use, held, requested, key."""

    code = "spend_limit"


class CreditExhausted(AppError):
    """A project that pays beforehand has too little credit left; metadata: quota, limit, in_use, held, requested."""

    code = "credit_exhausted"


class LimitNotFound(AppError):
    """No such limit, or no such quota of its own."""

    code = "limit_not_found"


class IdempotencyMismatch(AppError):
    """An Idempotency-Key that was used before, with another body."""

    code = "idempotency_mismatch"


class IdempotencyInFlight(AppError):
    """The first create under this Idempotency-Key is still going on, and the time to wait for it is over."""

    code = "idempotency_in_flight"


# Models, prompts and generation


class ModelNotFound(AppError):
    code = "model_not_found"


class TemplateUnsupported(AppError):
    code = "template_unsupported"


class InputTooLarge(AppError):
    code = "input_too_large"


class ArenaFull(AppError):
    """No room for the KV of this request; the message has the numbers."""

    code = "arena_full"


class DeadlineExceeded(AppError):
    code = "deadline_exceeded"


class Cancelled(AppError):
    code = "cancelled"


class Unavailable(AppError):
    """Cannot serve this now, and nothing was done: the same request may be sent again."""

    code = "unavailable"


class Internal(AppError):
    """Our own fault."""

    code = "internal"


class PriceMissing(AppError):
    """Nothing is sold without a price: refused, never charged as zero."""

    code = "price_missing"


class PeriodNotOver(AppError):
    """A month cannot be closed yet; the message says what is missing."""

    code = "period_not_over"


class EntryNotFound(AppError):
    code = "entry_not_found"


class LedgerConflict(AppError):
    """One event was charged twice with different figures. Nothing of the second is posted; metadata: entry."""

    code = "ledger_conflict"


# What stops a server from starting


class StartupError(AppError):
    """Refuses to start, and says what to change."""


class ModelBroken(StartupError):
    code = "model_broken"


class ModelUnsupported(StartupError):
    code = "model_unsupported"


class ModelTooLarge(StartupError):
    code = "model_too_large"


class DataFolderLocked(StartupError):
    code = "data_folder_locked"


class DatabaseLocked(StartupError):
    code = "database_locked"


class SecretInvalid(StartupError):
    code = "secret_invalid"


class PriceBookInvalid(StartupError):
    code = "price_book_invalid"


class LedgerBroken(StartupError):
    """What is used would not be charged."""

    code = "ledger_broken"


class SchemaMismatch(StartupError):
    code = "schema_mismatch"


class FingerprintChanged(StartupError):
    code = "fingerprint_changed"


class SettingsInvalid(StartupError):
    code = "settings_invalid"


class PackageMissing(StartupError):
    """A command needs a package that is not installed; metadata: package."""

    code = "package_missing"


def error_classes(root: type[AppError] = AppError) -> Iterator[type[AppError]]:
    """Every class below `root` that has a code."""
    for child in root.__subclasses__():
        if "code" in vars(child):
            yield child
        yield from error_classes(child)


def to_wire(error: AppError) -> dict[str, Any]:
    """Write an error as plain JSON values, so that another process can raise it again."""
    return {
        "code": error.code,
        "message": error.message,
        "field": error.field,
        "metadata": dict(error.metadata),
        "retry_after_seconds": error.retry_after_seconds,
        "violations": [list(pair) for pair in error.violations] if isinstance(error, InvalidArgument) else [],
    }


def from_wire(wire: Mapping[str, Any]) -> AppError:
    """Read what `to_wire` wrote; a code that this version does not know becomes Internal."""
    known = {each.code: each for each in error_classes()}
    error = known.get(wire["code"], Internal)(
        wire["message"],
        field=wire["field"],
        metadata=wire["metadata"],
        retry_after_seconds=wire["retry_after_seconds"],
    )
    if isinstance(error, InvalidArgument):
        error.violations = tuple((field, description) for field, description in wire["violations"])
    return error
