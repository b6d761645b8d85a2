"""Lines of CSV (RFC 4180), which a spreadsheet takes for what they are."""

import csv
from collections.abc import Iterable
from io import StringIO

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def line(cells: Iterable[str]) -> str:
    buffer = StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()


def inert(text: str) -> str:
    """Text that a spreadsheet takes for text; ids and buckets begin with a letter or a digit as it is."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def rate(value: float | None) -> str:
    """A rate as JSON has it; empty where there is none."""
    return "" if value is None else str(value)
