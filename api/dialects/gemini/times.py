"""Durations and timestamps in proto3 JSON, and the expiry that a request asks for with them."""

import re
from datetime import UTC, datetime, timedelta, timezone

from api.dialects.gemini.rejections import path_of
from core.clock import format_instant
from core.errors import InvalidArgument

_DURATION = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?s", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d{2}):([0-5]\d))?", re.ASCII
)


def parse_duration(text: str, path: str) -> timedelta:
    """Read a duration such as 300s or 3.5s; it must be positive. Below a microsecond digits are dropped."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise _wrong(path, "a duration in seconds, such as 300s or 3.5s", text)
    duration = timedelta(seconds=int(match[1]), microseconds=_microseconds(match[2]))
    if duration <= timedelta(0):
        raise _wrong(path, "positive", text)
    return duration


def parse_timestamp(text: str, path: str) -> datetime:
    """Read an RFC 3339 timestamp. One without an offset, as Python's SDK writes naive datetimes, is UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise _wrong(path, "an RFC 3339 timestamp, such as 2030-01-31T12:00:00Z", text)
    day, second, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{second}").replace(microsecond=_microseconds(fraction))
        offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        return moment.replace(tzinfo=timezone(-offset if sign == "-" else offset)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _wrong(path, "a timestamp that exists", text) from None


def parse_expiry(
    ttl: str | None,
    expire_time: str | None,
    arrived_at: datetime,
    longest: timedelta,
    root: str = "cached_content",
) -> datetime | timedelta | None:
    """Read the expiry that a cache is given: an instant, a life from now on, or neither. The longest life is enforced.

    root: the path of the body that has them.
    """
    if ttl is not None and expire_time is not None:
        where = f" at '{root}'" if root else ""
        raise InvalidArgument(
            f"Invalid value{where} (oneof), oneof field 'expiration' is already set. "
            "Send either 'ttl' or 'expireTime'.",
            field=path_of(("ttl",), root),
        )
    if ttl is not None:
        path = path_of(("ttl",), root)
        life = parse_duration(ttl, path)
        if life > longest:
            raise _wrong(path, f"at most {int(longest.total_seconds())}s", ttl)
        return life
    if expire_time is not None:
        path = path_of(("expire_time",), root)
        expire_at = parse_timestamp(expire_time, path)
        if expire_at <= arrived_at:
            raise _wrong(path, f"in the future (it is {format_instant(arrived_at)})", expire_time)
        if expire_at - arrived_at > longest:
            raise _wrong(path, f"at most {int(longest.total_seconds())} seconds from now", expire_time)
        return expire_at
    return None


def _microseconds(digits: str | None) -> int:
    return int((digits or "0").ljust(9, "0")[:6])


def _wrong(path: str, wanted: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid value at '{path}': it must be {wanted}, not {text[:60]!r}.", field=path)
