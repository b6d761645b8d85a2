"""A report as CSV (RFC 4180): a line for each group and meter. Exact integers, and the amount in USD beside them."""

import csv
from collections.abc import Iterator
from io import StringIO

from billing.money import usd
from billing.report import Report
from billing.report_json import UNITS, columns

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def report_csv(made: Report) -> Iterator[str]:
    """The lines, the header first. What could begin a formula in a spreadsheet is written behind an apostrophe."""
    names = columns(made.query)
    yield _line(
        [*names, "meter", "unit", "quantity", "amount_nano_usd", "without_cache_nano_usd", "amount_usd"]
    )
    for group, sums in made.groups.items():
        for meter, line in sums.lines.items():
            if line.quantity:
                figures = line.quantity, line.amount_nano_usd, line.without_cache_nano_usd
                cells = [
                    *map(inert, group),
                    meter,
                    UNITS[meter],
                    *map(str, figures),
                    usd(line.amount_nano_usd),
                ]
                yield _line(cells)


def inert(text: str) -> str:
    """Text that a spreadsheet takes for text; ids and buckets begin with a letter or a digit as it is."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _line(cells: list[str]) -> str:
    buffer = StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
