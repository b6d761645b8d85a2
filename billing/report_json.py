"""A report as JSON values, wherever it is shown: camelCase names, integers, instants in UTC.

Integers are exact and may exceed what a double holds.
"""

from collections.abc import Iterable
from typing import Any

from billing.meters import Meter
from billing.report import Line, Report
from core.clock import format_instant


def report_json(made: Report) -> dict[str, Any]:
    return {
        "start": format_instant(made.start),
        "end": format_instant(made.end),
        "asOf": format_instant(made.as_of),
        "amountNanoUsd": made.amount_nano_usd,
        "meters": _lines(made.lines),
        "projects": [
            {
                "projectId": project.project_id,
                "amountNanoUsd": project.amount_nano_usd,
                "meters": _lines(project.lines),
                "caches": [
                    {
                        "cacheId": cache.cache_id,
                        "amountNanoUsd": cache.amount_nano_usd,
                        "meters": _lines(cache.lines),
                    }
                    for cache in project.caches
                ],
            }
            for project in made.projects
        ],
    }


def _lines(lines: Iterable[Line]) -> list[dict[str, Any]]:
    return [_line(line) for line in lines]


def _line(line: Line) -> dict[str, Any]:
    told: dict[str, Any] = {
        "meter": line.meter,
        "quantity": line.quantity,
        "amountNanoUsd": line.amount_nano_usd,
    }
    if line.meter is Meter.CACHE_READ_TOKENS:
        told["explicitQuantity"] = line.quantity - line.implicit_quantity
        told["implicitQuantity"] = line.implicit_quantity
    return told
