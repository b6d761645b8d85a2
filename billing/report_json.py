"""A report as JSON values, wherever it is shown: camelCase names, integers, instants in UTC.

Integers are exact and may exceed what a double holds.
"""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from billing.meters import Meter
from billing.report import Group, Query, Report, Sums
from core.clock import format_instant

UNITS = dict.fromkeys(Meter, "tokens") | {Meter.CACHE_STORAGE_TOKEN_SECONDS: "token-seconds"}


def report_json(made: Report, groups: Mapping[Group, Sums] | None = None) -> dict[str, Any]:
    """groups: those of one page; None: all."""
    query = made.query
    return {
        **period_json(made),
        "groupBy": columns(query),
        **sums_json(made.total),
        "groups": [
            named(query, group) | sums_json(sums)
            for group, sums in (made.groups if groups is None else groups).items()
        ],
    }


def period_json(made: Report) -> dict[str, Any]:
    """What time a report is about, and what has to be known to read it."""
    return {
        "start": format_instant(made.query.period.start),
        "end": format_instant(made.query.period.end),
        "asOf": format_instant(made.as_of),
        "timeZone": zone_name(made.query),
        "notes": made.notes,
    }


def columns(query: Query) -> list[str]:
    """What each group is named by, in order."""
    return [*([] if query.bucket is None else [query.bucket]), *query.subjects]


def named(query: Query, group: Group) -> dict[str, str | None]:
    """The values of a group by their names; a cache that is none is None."""
    return {name: value or None for name, value in zip(columns(query), group, strict=True)}


def zone_name(query: Query) -> str:
    return "UTC" if query.zone is UTC else str(query.zone)


def shown_hit_rate(sums: Sums) -> float | None:
    """The hit rate as it is shown; None where there was no prompt."""
    return None if sums.hit_rate is None else round(sums.hit_rate, 4)


def sums_json(sums: Sums) -> dict[str, Any]:
    return {
        "amountNanoUsd": sums.amount_nano_usd,
        "provisionalNanoUsd": sums.provisional_nano_usd,
        "withoutCacheNanoUsd": sums.without_cache_nano_usd,
        "savedNanoUsd": sums.saved_nano_usd,
        "hits": sums.hits,
        "hitRate": shown_hit_rate(sums),
        "meters": [
            {
                "meter": meter,
                "unit": UNITS[meter],
                "quantity": line.quantity,
                "amountNanoUsd": line.amount_nano_usd,
                "withoutCacheNanoUsd": line.without_cache_nano_usd,
                "entries": line.entry_count,
            }
            for meter, line in sums.lines.items()
        ],
    }
