"""A statement as one HTML file that needs nothing else: no script, no font, no other file and no other host."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from billing.meters import Meter
from billing.money import usd
from billing.priced_lines import PricedLine
from billing.report import Line, Sums
from billing.report_json import UNITS, zone_name
from billing.statement import TOP_CACHES, Statement, add_up
from cli.billing.statement import words
from core.ids import cache_name

TEMPLATE = "statement.html"
MOST_CORRECTIONS = 200


@dataclass(frozen=True, slots=True)
class MeterRows:
    """One meter of the bill: its total, and a line for each model and price that made it."""

    meter: Meter
    total: Line
    lines: list[PricedLine]


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One line of the table of caches; rank: as in the plot, None for what is no single cache."""

    rank: int | None
    title: str
    name: str
    sums: Sums


def render(made: Statement, plots: Iterable[tuple[str, Markup]]) -> str:
    """Write the page, with plots below the sentences that they are about. The same statement gives the same text."""
    sums = made.sums
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            made=made,
            sums=sums,
            month=f"{min(made.days):%B %Y}",
            zone=zone_name(made.total.query),
            has_charges=any(line.quantity for line in sums.lines.values()),
            meters=[_meter_rows(made, meter) for meter in Meter],
            caches=list(_cache_rows(made)),
            corrections=made.corrections[:MOST_CORRECTIONS],
            left_out=made.corrections[MOST_CORRECTIONS:],
            plots=list(plots),
            words=words,
            units=UNITS,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        usd=signed_usd, count=count, instant=instant, shown=lambda text: words.shortened(text, 200)
    )
    return environment


def signed_usd(nano_usd: int) -> str:
    """Write an amount to the nano, with a minus that is as wide as a plus."""
    return usd(nano_usd).replace("-", "−")


def count(number: int) -> str:
    return f"{number:,}".replace("-", "−")


def instant(at: datetime) -> str:
    """Write an instant in UTC: to the minute, or to the second where it is no whole minute."""
    return f"{at.astimezone(UTC):{'%Y-%m-%d %H:%M:%S' if at.second else '%Y-%m-%d %H:%M'}} UTC"


def _meter_rows(made: Statement, meter: Meter) -> MeterRows:
    return MeterRows(meter, made.sums.lines[meter], [line for line in made.prices if line.meter is meter])


def _cache_rows(made: Statement) -> Iterator[CacheRow]:
    """The dearest caches, then all others and what named no cache: together they are the whole bill."""
    for rank, (cache_id, sums) in enumerate(made.caches.items(), 1):
        if rank > TOP_CACHES:
            break
        yield CacheRow(rank, made.names.get(cache_id, ""), cache_name(cache_id), sums)
    others = list(made.caches.values())[TOP_CACHES:]
    if others:
        yield CacheRow(None, f"{len(others):,} other caches", "", add_up(others))
    yield CacheRow(None, "Requests without a cache", "", made.without_cache)
