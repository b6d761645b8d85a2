"""The report of caches as CSV: a line for each, the greatest loss first."""

from collections.abc import Iterable, Iterator

from billing.break_even import rounded
from billing.cache_report import CacheFigures
from billing.csv_text import inert, line as csv_line, rate

_COLUMNS = (
    *("project", "cache", "model", "token_count", "kept_seconds", "hits", "hits_per_hour"),
    *(
        "break_even_hits_per_hour",
        "cost_nano_usd",
        "hits_saved_nano_usd",
        "net_nano_usd",
        "provisional_nano_usd",
    ),
    "costs_more_than_it_saves",
)


def cache_report_csv(shown: Iterable[CacheFigures]) -> Iterator[str]:
    """The lines, the header first. A rate that is none is empty."""
    yield csv_line(_COLUMNS)
    for each in shown:
        yield csv_line(_cells(each))


def _cells(figures: CacheFigures) -> Iterator[str]:
    line = figures.line
    yield from map(inert, (line.project_id, line.cache_id, figures.model))
    yield from map(str, (figures.token_count, figures.kept_seconds, line.sums.hits))
    yield from (rate(rounded(figures.hits_per_hour)), rate(rounded(figures.hits_per_hour_to_keep)))
    yield from map(str, (line.cost_nano_usd, line.hits_saved_nano_usd, line.net_nano_usd))
    yield str(line.sums.provisional_nano_usd)
    yield "true" if line.net_nano_usd < 0 else "false"
