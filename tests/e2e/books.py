"""What the database says, read beside the server: rows of caches and usage, and the proof of the bill."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
from sqlalchemy import select

from billing.periods import Period
from billing.report import Query, Subject, report
from billing.report_json import report_json
from billing.verify import verify
from models.cache import Cache, find_prefix
from models.ledger_entry import list_entries
from models.project import find_project_by_name, get_project
from models.session import Database
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageKind
from tests.e2e.customer import NO_AUTHORITIES

_START = "2024-01-01T00:00:00Z"


@dataclass(frozen=True)
class Books:
    """Every method reads one snapshot."""

    database: Database

    def project_id(self, name: str) -> str:
        with self.database.read() as session:
            project = find_project_by_name(session, name)
        assert project is not None
        return project.id

    def project_name(self, project_id: str) -> str:
        with self.database.read() as session:
            return get_project(session, project_id).name

    def cache(self, cache_name: str) -> Cache:
        with self.database.read() as session:
            return session.get_one(Cache, cache_name.removeprefix("cachedContents/"))

    def caches(self, project_id: str) -> list[Cache]:
        """List the project's caches in the order in which they were made."""
        with self.database.read() as session:
            query = select(Cache).where(Cache.project_id == project_id).order_by(Cache.created_at)
            return list(session.scalars(query))

    def token_bytes(self, cache_name: str) -> bytes:
        """Some token ids from the midst of a cache, as the file holds them."""
        with self.database.read() as session:
            prefix = find_prefix(session, cache_name.removeprefix("cachedContents/"))
        assert prefix is not None
        ids = prefix.token_ids
        middle = ids[len(ids) // 2 : len(ids) // 2 + 24]
        return b"".join(token_id.to_bytes(4, "little") for token_id in middle)

    def usage(self, project_id: str, kind: UsageKind | None = None) -> list[Usage]:
        with self.database.read() as session:
            query = select(Usage).where(Usage.project_id == project_id).order_by(Usage.created_at, Usage.id)
            return [row for row in session.scalars(query) if kind in (None, row.kind)]

    def generations(self, project_id: str) -> list[Usage]:
        return self.usage(project_id, UsageKind.GENERATE)

    def writes(self, project_id: str) -> list[Usage]:
        return self.usage(project_id, UsageKind.CREATE)

    def segments(self, project_id: str) -> list[StorageSegment]:
        with self.database.read() as session:
            query = select(StorageSegment).where(StorageSegment.project_id == project_id)
            return list(session.scalars(query.order_by(StorageSegment.started_at)))

    def cost(self, project_id: str, event_id: str) -> dict[str, int]:
        """What the ledger holds by meter of one request, by its id, or of one write: write:<cache id>."""
        with self.database.read() as session:
            entries = list_entries(session, project_id, 0, 100_000)
        found = [each for each in entries if each.dedupe_key.startswith(f"{event_id}:")]
        return {str(each.meter): each.amount_nano_usd for each in found}

    def proven_bill(self, address: str, key: str) -> dict[str, Any]:
        """The bill as the key's owner gets it, by project and cache, once the books were found to be right."""
        answer = httpx.get(
            f"{address}/headstart/v1/billing/report",
            params={"start": _START, "groupBy": "project,cache", "pageSize": "10000"},
            headers={"x-goog-api-key": key},
            timeout=30,
            verify=NO_AUTHORITIES,
        )
        assert answer.status_code == 200, answer.text
        bill: dict[str, Any] = answer.json()
        assert "nextPageToken" not in bill  # of one instant: a second page would be of another
        now = datetime.fromisoformat(bill["asOf"])
        with self.database.read() as session:
            assert list(verify(session, now)) == []
            # What an operator is shown, of the projects that this key sees.
            query = Query(Period(datetime.fromisoformat(_START), now), None, (Subject.PROJECT, Subject.CACHE))
            everything = report_json(report(session, query, now))["groups"]
        only = {group["project"] for group in bill["groups"]}
        assert bill["groups"] == [group for group in everything if group["project"] in only]
        assert bill["amountNanoUsd"] == sum(group["amountNanoUsd"] for group in bill["groups"])
        return bill


def quantities(bill: dict[str, Any]) -> dict[str, int]:
    return {line["meter"]: line["quantity"] for line in bill["meters"]}
