"""The demo's bill: asked for over HTTP like any customer's, then proved from the rows in the database file."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from billing.recompute import Totals, recompute
from cli.demo.server import ServerAddress
from core.clock import format_instant
from core.data_folder import database_path
from models.session import Database, sqlite_url

Figures = dict[tuple[str, str | None, str], int]


@dataclass(frozen=True, slots=True)
class DemoBill:
    """meters: name, quantity and nano-USD of what was consumed. matches: the report equals the recomputation."""

    meters: tuple[tuple[str, int, int], ...]
    amount_nano_usd: int
    matches: bool


def fetch_and_prove(server: ServerAddress, data_dir: Path, start: datetime, end: datetime) -> DemoBill:
    report = fetch_report(server, start, end)
    as_of = datetime.fromisoformat(report["asOf"])
    database = Database(sqlite_url(database_path(data_dir / "data")), pool_size=1)
    try:
        with database.read() as session:
            totals = recompute(session, start=start, end=end, now=as_of)
    finally:
        database.dispose()
    meters = tuple(
        (each["meter"], each["quantity"], each["amountNanoUsd"])
        for each in report["meters"]
        if each["quantity"]
    )
    return DemoBill(meters, report["amountNanoUsd"], is_equal(report, totals))


def fetch_report(server: ServerAddress, start: datetime, end: datetime) -> dict[str, Any]:
    period = urlencode({"start": format_instant(start), "end": format_instant(end)})
    request = Request(  # noqa: S310 - the server that this demo has started
        f"{server.address}/headstart/v1/billing/report?{period}",
        headers={"x-goog-api-key": server.operator_key},
    )
    with urlopen(request, timeout=30) as answer:  # noqa: S310
        report: dict[str, Any] = json.load(answer)
    return report


def is_equal(report: dict[str, Any], totals: Totals) -> bool:
    """Every figure of the report, and its sum, against the rows."""
    expected = {
        "quantity": totals.quantities,
        "implicitQuantity": totals.implicit_quantities,
        "amountNanoUsd": totals.amounts_nano_usd,
    }
    return report["amountNanoUsd"] == sum(totals.amounts_nano_usd.values()) and all(
        figures(report, name) == {place: value for place, value in each.items() if value}
        for name, each in expected.items()
    )


def figures(report: dict[str, Any], name: str) -> Figures:
    return {
        (project["projectId"], cache["cacheId"], line["meter"]): line[name]
        for project in report["projects"]
        for cache in project["caches"]
        for line in cache["meters"]
        if line.get(name)
    }
