"""What is on the books of a test's database, and what it comes to."""

from collections.abc import Mapping
from datetime import UTC, datetime

from billing.meters import Meter
from billing.periods import Bucket, Period
from billing.report import Query, Report, Subject, report
from models.ledger_entry import LedgerEntry, list_entries
from models.session import Database

EVER = Period(datetime(2025, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC))
LATE = datetime(2027, 12, 31, tzinfo=UTC)
USD = 10**9


def entries(database: Database, project_id: str | None = None) -> list[LedgerEntry]:
    with database.read() as session:
        return list(list_entries(session, project_id, 0, 10_000))


def bill(
    database: Database,
    *subjects: Subject,
    period: Period = EVER,
    bucket: Bucket | None = None,
    now: datetime = LATE,
    project_id: str | None = None,
) -> Report:
    with database.read() as session:
        return report(session, Query(period, project_id, subjects, bucket), now)


def total(database: Database, now: datetime = LATE) -> int:
    return bill(database, now=now).total.amount_nano_usd


def quantities(made: Report) -> Mapping[Meter, int]:
    return {meter: line.quantity for meter, line in made.total.lines.items() if line.quantity}


def amounts(made: Report) -> Mapping[Meter, int]:
    return {meter: line.amount_nano_usd for meter, line in made.total.lines.items() if line.quantity}
