"""Periods of a bill, half-open [start, end), as somebody writes them, and the hours, days and months of a time zone."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from billing.months import FIRST_YEAR, LAST_YEAR
from billing.rating import HOUR, whole_hour
from core.errors import InvalidArgument

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
LOCAL_DAY = re.compile(r"\d{4}-\d\d(-\d\d)?", re.ASCII)
FORM = "an instant with its offset, such as 2026-01-31T00:00:00Z, or a day or month, such as 2026-01-31 or 2026-01"
YEARS = f"the years {FIRST_YEAR} to {LAST_YEAR}"  # of prices, and so of charges


class Bucket(StrEnum):
    """What time is cut into. The hours are those of UTC, in which charges occur."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Period:
    """Instants from start on and before end. Periods that meet share no charge and lose none."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.utcoffset() is None or self.end.utcoffset() is None:
            raise InvalidArgument(f"A period needs {FORM}.", field="start")
        if self.start > self.end:
            raise InvalidArgument("start lies after end; exchange them.", field="start")


def parse_period(start: str | None, end: str | None, now: datetime, zone: tzinfo = UTC) -> Period:
    """Read a period; without a start it begins with the month of `now` in the zone, without an end it ends now.

    Charges are kept by the hour of UTC: a start is a whole one, and the hour that an end lies in counts. Days and months are
    the zone's; as an end, one stands for its first instant, which is excluded. Raises InvalidArgument, which names the field.
    """
    month = now.astimezone(zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Period(
        start=month.astimezone(UTC) if start is None else _parse_instant("start", start, zone),
        end=now if end is None else _parse_instant("end", end, zone),
    )


def parse_zone(name: str | None) -> tzinfo:
    """Find a time zone by its IANA name; None is UTC. Raises InvalidArgument for one that is unknown."""
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidArgument(
            f"There is no time zone {name[:64]!r}; write one of the IANA's, such as Europe/Vienna.",
            field="timeZone",
        ) from error


def bucket_of(hour: datetime, bucket: Bucket, zone: tzinfo) -> str:
    """Name the bucket that an hour counts in: the local one in which the hour starts."""
    local = hour.astimezone(zone)
    match bucket:
        case Bucket.HOUR:
            return local.isoformat(timespec="minutes").replace("+00:00", "Z")
        case Bucket.DAY:
            return f"{local:%Y-%m-%d}"
        case Bucket.MONTH:
            return f"{local:%Y-%m}"


def is_within_hour(hour: datetime, zone: tzinfo) -> bool:
    """Whether an hour of UTC starts within one of the zone: it can lie in two of its days, and counts in the first."""
    offset = hour.astimezone(zone).utcoffset()
    return offset is not None and bool(offset % HOUR)


def has_cut_end(period: Period, zone: tzinfo) -> bool:
    """Whether the period begins or ends within an hour of UTC because a day of the zone does."""
    return any(at != whole_hour(at) and is_within_hour(at, zone) for at in (period.start, period.end))


def check_year(field: str, text: str) -> None:
    """Raise InvalidArgument for a day or an instant, which begins with its year, that no price is for."""
    if not FIRST_YEAR <= int(text[:4]) <= LAST_YEAR:
        raise InvalidArgument(f"{field} must lie in {YEARS}, not {text[:64]!r}.", field=field)


def _parse_instant(field: str, text: str, zone: tzinfo) -> datetime:
    is_day = LOCAL_DAY.fullmatch(text) is not None
    if not is_day and not RFC_3339.fullmatch(text):
        # A + that was not escaped in a URL arrives as a space.
        hint = " In a URL, write + as %2B." if " " in text else ""
        raise InvalidArgument(f"{field} must be {FORM}, not {text[:64]!r}.{hint}", field=field)
    check_year(field, text)
    try:
        if is_day:
            day = datetime.fromisoformat(text if len(text) > len("YYYY-MM") else f"{text}-01")
            return day.replace(tzinfo=zone).astimezone(UTC)
        instant = datetime.fromisoformat(text.upper()).astimezone(UTC)
    except ValueError as error:
        raise InvalidArgument(
            f"{field} is no instant of the calendar: {text[:64]!r}.", field=field
        ) from error
    if field == "start" and instant != whole_hour(instant):
        raise InvalidArgument(
            f"{field} must be a whole hour of UTC, not {text[:64]!r}: charges are kept by the hour.",
            field=field,
        )
    return instant
