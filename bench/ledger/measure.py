"""Times of a generated month: rolling it up, its reports, and verifying its last day."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from bench.ledger import month
from bench.ledger.questions import QUESTIONS, Answer, ask
from bench.ledger.shape import MONTH, NOW, Shape
from bench.set_clock import SetClock
from billing.bookkeeping import keep_books
from billing.verify import verify
from models.session import Database

STEPS = month.STEPS + 2 + len(QUESTIONS)
_SIZES = text(
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relname LIKE 'ledger_%' AND relkind = 'r' ORDER BY 2 DESC"
)
_COUNTS = text(
    "SELECT (SELECT count(*) FROM ledger_entries), (SELECT max(id) FROM ledger_entries), (SELECT count(*) FROM ledger_hours)"
)


@dataclass(frozen=True, slots=True)
class Month:
    """sizes: bytes of each table with its indexes. verify_s: of verifying the last day. findings: of it."""

    rows: int
    newest_id: int
    hour_rows: int
    sizes: dict[str, int]
    generated_s: float
    rolled_up_s: float
    answers: list[Answer]
    verify_s: float
    findings: list[str]

    @property
    def report_s(self) -> float:
        return max(answer.report_s for answer in self.answers)

    @property
    def wrong(self) -> list[str]:
        unequal = [f"{each.name}: report and GROUP BY differ" for each in self.answers if not each.is_equal]
        return [*unequal, *self.findings]

    def as_json(self) -> dict[str, Any]:
        plain = "rows", "newest_id", "hour_rows", "sizes", "generated_s", "rolled_up_s", "verify_s"
        reports = {answer.name: answer.as_json() for answer in self.answers}
        return {name: getattr(self, name) for name in plain} | {"reports": reports}


def measure_month(database: Database, shape: Shape, tick: Callable[[str], None]) -> Month:
    """In an empty database."""
    generated_s = month.fill(database, shape, tick)
    tick("rolling up")
    rolled_up_s = _timed(lambda: keep_books(database, SetClock(NOW)))
    with database.write() as session:
        session.execute(text("ANALYZE ledger_hours"))
    answers = []
    for question in QUESTIONS:
        tick(question.name)
        answers.append(ask(database, question))
    tick("verifying the last day")
    findings: list[str] = []
    since = MONTH + timedelta(seconds=month.FACTS_FROM)

    def find() -> None:
        with database.read() as session:
            findings.extend(f"{each.check}: {each.what}" for each in verify(session, NOW, since))

    verify_s = _timed(find)
    with database.read() as session:
        rows, newest_id, hour_rows = session.execute(_COUNTS).one()
        sizes = {row[0]: row[1] for row in session.execute(_SIZES)}
    return Month(
        rows, newest_id, hour_rows, sizes, generated_s, rolled_up_s, answers, verify_s, findings[:20]
    )


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
