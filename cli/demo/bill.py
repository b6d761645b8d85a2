"""The demo's bill: asked for over HTTP like any customer's, then proved from the rows in the database file."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from billing.rating import whole_hour
from billing.verify import verify
from cli.demo.server import ServerAddress
from core.clock import format_instant
from core.data_folder import database_path
from models.session import Database, sqlite_url


@dataclass(frozen=True, slots=True)
class DemoBill:
    """meters: name, quantity and nano-USD of what was consumed. saved_nano_usd: against no cache; negative: it cost more.

    matches: every charge agrees with what happened, computed a second time.
    """

    meters: tuple[tuple[str, int, int], ...]
    amount_nano_usd: int
    saved_nano_usd: int
    matches: bool


def fetch_and_prove(server: ServerAddress, data_dir: Path, start: datetime) -> DemoBill:
    report = fetch_report(server, start)
    database = Database(sqlite_url(database_path(data_dir / "data")), pool_size=1)
    try:
        with database.read() as session:
            findings = list(verify(session, datetime.fromisoformat(report["asOf"])))
    finally:
        database.dispose()
    meters = tuple(
        (each["meter"], each["quantity"], each["amountNanoUsd"])
        for each in report["meters"]
        if each["quantity"]
    )
    return DemoBill(meters, report["amountNanoUsd"], report["savedNanoUsd"], not findings)


def fetch_report(server: ServerAddress, start: datetime) -> dict[str, Any]:
    """The bill from the hour of `start` on."""
    period = urlencode({"start": format_instant(whole_hour(start))})
    request = Request(  # noqa: S310 - the server that this demo has started
        f"{server.address}/headstart/v1/billing/report?{period}",
        headers={"x-goog-api-key": server.operator_key},
    )
    with urlopen(request, timeout=30) as answer:  # noqa: S310
        report: dict[str, Any] = json.load(answer)
    return report
