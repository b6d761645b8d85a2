"""A report as CSV: a line for each group and meter. Exact integers, and the amount in USD beside them."""

from collections.abc import Iterator

from billing.csv_text import inert, line as csv_line, rate
from billing.meters import Meter
from billing.money import usd
from billing.report import Report, Sums
from billing.report_json import UNITS, columns, shown_hit_rate

# Those of a whole group stand on each of its lines, and are not to be added up.
_FIGURES = (
    *("meter", "unit", "quantity", "amount_nano_usd", "without_cache_nano_usd", "amount_usd"),
    *("provisional_nano_usd", "entries", "group_hits", "group_hit_rate", "group_saved_nano_usd"),
)


def report_csv(made: Report) -> Iterator[str]:
    """The lines, the header first. What could begin a formula in a spreadsheet is written behind an apostrophe."""
    yield csv_line([*columns(made.query), *_FIGURES])
    for group, sums in made.groups.items():
        for meter, line in sums.lines.items():
            if line.quantity:
                yield csv_line([*map(inert, group), *_cells(sums, meter)])


def _cells(sums: Sums, meter: Meter) -> Iterator[str]:
    line = sums.lines[meter]
    yield from (meter, UNITS[meter])
    yield from map(str, (line.quantity, line.amount_nano_usd, line.without_cache_nano_usd))
    yield usd(line.amount_nano_usd)
    # What is not posted yet is storage.
    yield str(sums.provisional_nano_usd if meter is Meter.CACHE_STORAGE_TOKEN_SECONDS else 0)
    yield from map(str, (line.entry_count, sums.hits))
    yield rate(shown_hit_rate(sums))
    yield str(sums.saved_nano_usd)
