"""Periods of a bill, half-open [start, end), as somebody writes them."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from core.errors import InvalidArgument

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
FORM = "an instant with its offset, such as 2026-01-31T00:00:00Z"


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


def parse_period(start: str | None, end: str | None, now: datetime) -> Period:
    """Read a period; without a start it begins with the month of `now` in UTC, without an end it ends now."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Period(
        start=month if start is None else _parse_instant("start", start),
        end=now if end is None else _parse_instant("end", end),
    )


def _parse_instant(field: str, text: str) -> datetime:
    if not RFC_3339.fullmatch(text):
        # A + that was not escaped in a URL arrives as a space.
        hint = " In a URL, write + as %2B." if " " in text else ""
        raise InvalidArgument(f"{field} must be {FORM}, not {text[:64]!r}.{hint}", field=field)
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{field} is no instant of the calendar: {text[:64]!r}.", field=field
        ) from error
