"""The one table from error codes to what a caller sees: HTTP status, canonical name and reason, per dialect.

Both dialects answer with Google's envelope (google.rpc.Status). They differ where a status says too much or too little:
Gemini has its own codes for bad keys and for a cache that is gone; under /headstart/v1 these are plain 401 and 404.
"""

import logging
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api import json_text
from core.errors import AppError, Cancelled, Internal, InvalidArgument, RouteNotFound

log = logging.getLogger(__name__)

DOMAIN = "headstart"
NATIVE_PREFIX = "/headstart/"
CACHE_GONE = "CachedContent not found (or permission denied)"  # clients match on these very words
_TYPE = "type.googleapis.com/google.rpc."


class Dialect(StrEnum):
    GEMINI = "gemini"
    NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Status:
    http: int
    canonical: str


@dataclass(frozen=True, slots=True)
class Row:
    """One code's answers. `text`: the words that replace the error's own, where all causes must read alike."""

    gemini: Status
    native: Status
    reason: str
    gemini_text: str | None = None
    native_text: str | None = None


_INVALID = Status(400, "INVALID_ARGUMENT")
_PRECONDITION = Status(400, "FAILED_PRECONDITION")
_UNAUTHENTICATED = Status(401, "UNAUTHENTICATED")
_DENIED = Status(403, "PERMISSION_DENIED")
_NOT_FOUND = Status(404, "NOT_FOUND")
_EXHAUSTED = Status(429, "RESOURCE_EXHAUSTED")
_ABORTED = Status(409, "ABORTED")
_INTERNAL = Status(500, "INTERNAL")


def _same(status: Status, reason: str) -> Row:
    return Row(status, status, reason)


def _bad_key(gemini: Status, reason: str) -> Row:
    return Row(gemini, _UNAUTHENTICATED, reason, native_text="Missing or invalid API key.")


def _gone(reason: str) -> Row:
    return Row(_DENIED, _NOT_FOUND, reason, gemini_text=CACHE_GONE, native_text="There is no such cache.")


TABLE: dict[str, Row] = {
    "invalid_argument": _same(_INVALID, "INVALID_ARGUMENT"),
    "body_too_large": _same(Status(413, "INVALID_ARGUMENT"), "BODY_TOO_LARGE"),
    "route_not_found": _same(_NOT_FOUND, "ROUTE_NOT_FOUND"),
    "method_not_allowed": _same(Status(405, "UNIMPLEMENTED"), "METHOD_NOT_ALLOWED"),
    "not_supported": _same(_INVALID, "NOT_SUPPORTED"),
    "key_missing": _bad_key(_DENIED, "API_KEY_MISSING"),
    "key_invalid": _bad_key(_INVALID, "API_KEY_INVALID"),
    "bearer_invalid": _bad_key(_UNAUTHENTICATED, "ACCESS_TOKEN_INVALID"),
    "scope_missing": _same(_DENIED, "SCOPE_MISSING"),
    "key_not_found": _same(_NOT_FOUND, "KEY_NOT_FOUND"),
    "project_not_found": _same(_NOT_FOUND, "PROJECT_NOT_FOUND"),
    "project_exists": _same(Status(409, "ALREADY_EXISTS"), "PROJECT_EXISTS"),
    "cache_not_found": _gone("CACHE_NOT_FOUND"),
    "cache_expired": _gone("CACHE_EXPIRED"),
    "cache_deleted": _gone("CACHE_DELETED"),
    "cache_model_retired": _gone("CACHE_MODEL_RETIRED"),
    "cache_model_mismatch": _same(_INVALID, "CACHE_MODEL_MISMATCH"),
    "cache_field_conflict": _same(_INVALID, "CACHE_FIELD_CONFLICT"),
    "cache_too_small": _same(_INVALID, "CACHE_TOO_SMALL"),
    "cache_too_large": _same(_INVALID, "CACHE_TOO_LARGE"),
    "cache_prefix_mismatch": _same(_INVALID, "CACHE_PREFIX_MISMATCH"),
    "cache_quota": _same(_EXHAUSTED, "CACHE_QUOTA"),
    "spend_limit": _same(_EXHAUSTED, "SPEND_LIMIT"),
    "credit_exhausted": _same(_EXHAUSTED, "CREDIT_EXHAUSTED"),
    "limit_not_found": _same(_NOT_FOUND, "LIMIT_NOT_FOUND"),
    "idempotency_mismatch": _same(_INVALID, "IDEMPOTENCY_MISMATCH"),
    "idempotency_in_flight": _same(_ABORTED, "IDEMPOTENCY_IN_FLIGHT"),
    "model_not_found": _same(_NOT_FOUND, "MODEL_NOT_FOUND"),
    "template_unsupported": _same(_PRECONDITION, "TEMPLATE_UNSUPPORTED"),
    "input_too_large": _same(_INVALID, "INPUT_TOO_LARGE"),
    "arena_full": _same(_EXHAUSTED, "ARENA_FULL"),
    "deadline_exceeded": _same(Status(504, "DEADLINE_EXCEEDED"), "DEADLINE_EXCEEDED"),
    "cancelled": _same(Status(499, "CANCELLED"), "CANCELLED"),
    "unavailable": _same(Status(503, "UNAVAILABLE"), "UNAVAILABLE"),
    "price_missing": _same(_PRECONDITION, "PRICE_MISSING"),
    "period_not_over": _same(_PRECONDITION, "PERIOD_NOT_OVER"),
    "entry_not_found": _same(_NOT_FOUND, "ENTRY_NOT_FOUND"),
    "ledger_conflict": _same(_INTERNAL, "LEDGER_CONFLICT"),
    "internal": _same(_INTERNAL, "INTERNAL"),
}


def dialect_of(path: str) -> Dialect:
    return Dialect.NATIVE if path.startswith(NATIVE_PREFIX) else Dialect.GEMINI


def to_app_error(error: Exception) -> AppError:
    """Put any exception that reached the edge into our own terms. What nobody foresaw is logged, and told to no caller."""
    if isinstance(error, AppError):
        return error if error.code in TABLE else Internal(error.message)
    if isinstance(error, HTTPException) and error.status_code == 404:
        return RouteNotFound("There is no such route. The documentation lists the routes.")
    if isinstance(error, ClientDisconnect):
        return Cancelled("The client hung up while it sent its request.")
    log.error("unforeseen error", exc_info=error)
    return Internal("Internal error. The log of the server has it under the x-request-id of this answer.")


def status_of(error: AppError, dialect: Dialect) -> Status:
    row = TABLE[error.code]
    return row.native if dialect is Dialect.NATIVE else row.gemini


def envelope(error: AppError, dialect: Dialect) -> dict[str, Any]:
    """Write the body. `error` stays the only key: the Python SDK knows an error in a stream by its first key."""
    row = TABLE[error.code]
    status = status_of(error, dialect)
    text = row.native_text if dialect is Dialect.NATIVE else row.gemini_text
    reason = row.reason
    if dialect is Dialect.NATIVE and status is _UNAUTHENTICATED:
        reason = "API_KEY_INVALID"  # one body for every cause
    details = [_error_info(error, reason)] if text is None else [_bare_info(reason)]
    if text is None:
        details += _more_details(error, status, reason)
    body = {"code": status.http, "message": text or error.message, "status": status.canonical}
    return {"error": {**body, "details": details}}


def error_response(error: AppError, request: Request) -> Response:
    """Answer with the envelope, inside a one-element array where the route streams an array."""
    dialect = dialect_of(request.scope["path"])
    status = status_of(error, dialect)
    body: object = envelope(error, dialect)
    if _streams_array(request):
        body = [body]
    response = Response(json_text.dump(body), status.http, media_type="application/json")
    if error.retry_after_seconds is not None:
        response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after_seconds)))
    if status is _UNAUTHENTICATED:
        response.headers["www-authenticate"] = "Bearer"
    if "allowed" in error.metadata:
        response.headers["allow"] = error.metadata["allowed"]
    return response


def _error_info(error: AppError, reason: str) -> dict[str, Any]:
    metadata = dict(error.metadata)
    if error.field is not None:
        metadata.setdefault("field", error.field)
    return _bare_info(reason) | ({"metadata": metadata} if metadata else {})


def _bare_info(reason: str) -> dict[str, Any]:
    return {"@type": _TYPE + "ErrorInfo", "reason": reason, "domain": DOMAIN}


def _more_details(error: AppError, status: Status, reason: str) -> list[dict[str, Any]]:
    details: list[dict[str, Any]] = []
    violations = error.violations if isinstance(error, InvalidArgument) else ()
    if not violations and error.field is not None and status is _INVALID:
        violations = ((error.field, error.message),)
    if violations:
        pairs = [{"field": field, "description": description} for field, description in violations]
        details.append({"@type": _TYPE + "BadRequest", "fieldViolations": pairs})
    if status is _EXHAUSTED:
        details.append({"@type": _TYPE + "QuotaFailure", "violations": [_quota_violation(error, reason)]})
    if error.retry_after_seconds is not None:
        details.append({"@type": _TYPE + "RetryInfo", "retryDelay": f"{error.retry_after_seconds:.3f}s"})
    return details


def _quota_violation(error: AppError, reason: str) -> dict[str, Any]:
    """google.rpc.QuotaFailure.Violation; the metric is ours, so its name is in our domain."""
    violation: dict[str, Any] = {"quotaId": reason, "description": error.message}
    facts = error.metadata
    if "quota" in facts:
        violation["quotaMetric"] = f"{DOMAIN}/{facts['quota']}"
    if "limit" in facts:
        violation["quotaValue"] = facts["limit"]
    if "model" in facts:
        violation["quotaDimensions"] = {"model": facts["model"]}
    return violation


def _streams_array(request: Request) -> bool:
    is_stream = request.scope["path"].endswith(":streamGenerateContent")
    return is_stream and request.query_params.get("alt") != "sse"
