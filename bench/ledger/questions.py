"""The reports of a month: as they are asked for, and by a plain GROUP BY over every entry, which must say the same."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.ledger.shape import MONTH, MONTH_END, NOW
from billing.periods import Bucket, Period
from billing.report import Query, Report, Subject, report
from models.session import Database

ROUNDS = 3
Made = TypeVar("Made")
Lines = Mapping[
    tuple[str, ...], tuple[int, int, int, int]
]  # by group and meter: quantity, amount, without, entries


@dataclass(frozen=True, slots=True)
class Question:
    """columns: what the plain GROUP BY groups by, as SQL. is_of_one: of the project with the most entries."""

    name: str
    columns: Sequence[str]
    subjects: tuple[Subject, ...] = ()
    bucket: Bucket | None = None
    is_of_one: bool = False


QUESTIONS = (
    Question("by project", ("project_id",), (Subject.PROJECT,)),
    Question("by day", ("to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD')",), bucket=Bucket.DAY),
    Question("by cache of one project", ("coalesce(cache_id, '')",), (Subject.CACHE,), is_of_one=True),
)
_BUSIEST = text(
    "SELECT project_id FROM ledger_hours GROUP BY project_id ORDER BY sum(entry_count) DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """seconds: of each round of the report. raw_seconds: of the plain GROUP BY. nano_usd: of the month, by each of them."""

    name: str
    seconds: list[float]
    raw_seconds: float
    line_count: int
    nano_usd: int
    raw_nano_usd: int
    is_equal: bool

    @property
    def report_s(self) -> float:
        return statistics.median(self.seconds)

    def as_json(self) -> dict[str, object]:
        return {
            "report_s": self.report_s,
            "reports_s": self.seconds,
            "raw_s": self.raw_seconds,
            "lines": self.line_count,
            "nano_usd": self.nano_usd,
            "raw_nano_usd": self.raw_nano_usd,
            "equal": self.is_equal,
        }


def ask(database: Database, question: Question) -> Answer:
    with database.read() as session:
        project_id = session.scalars(_BUSIEST).one() if question.is_of_one else None
        query = Query(Period(MONTH, MONTH_END), project_id, question.subjects, question.bucket)
        made, seconds = _timed(lambda: report(session, query, NOW))
        rounds = [seconds, *(_timed(lambda: report(session, query, NOW))[1] for _ in range(ROUNDS - 1))]
        raw, raw_seconds = _timed(lambda: _raw(session, question, project_id))
    lines = _lines(made)
    return Answer(
        question.name,
        rounds,
        raw_seconds,
        len(lines),
        sum(line[1] for line in lines.values()),
        sum(line[1] for line in raw.values()),
        lines == raw,
    )


def _timed(work: Callable[[], Made]) -> tuple[Made, float]:
    started = time.perf_counter()
    made = work()
    return made, time.perf_counter() - started


def _lines(made: Report) -> Lines:
    return {
        (*group, meter): (line.quantity, line.amount_nano_usd, line.without_cache_nano_usd, line.entry_count)
        for group, sums in made.groups.items()
        for meter, line in sums.lines.items()
        if line.entry_count
    }


def _raw(session: Session, question: Question, project_id: str | None) -> Lines:
    by = ", ".join(question.columns)
    only = "AND project_id = :project_id" if project_id else ""
    rows = session.execute(
        text(
            f"SELECT {by}, meter, sum(quantity)::bigint, sum(amount_nano_usd)::bigint, sum(without_cache_nano_usd)::bigint, "  # noqa: S608
            "count(*) FILTER (WHERE corrects_id IS NULL) FROM ledger_entries "
            f"WHERE hour >= :start AND hour < :end AND meter IS NOT NULL {only} GROUP BY {by}, meter"
        ),
        {"start": MONTH, "end": MONTH_END} | ({"project_id": project_id} if project_id else {}),
    )
    width = len(question.columns) + 1
    return {tuple(row[:width]): (row[width], row[width + 1], row[width + 2], row[width + 3]) for row in rows}
