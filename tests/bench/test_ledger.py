"""`bench report` on a small month: what it generates is right, what it times agrees, and what is wrong is found."""

import json
from collections.abc import Iterator

import pytest
import typer
from sqlalchemy import text
from typer.testing import CliRunner, Result

from bench.database import opened
from bench.ledger import command
from bench.ledger.command import report_command
from bench.ledger.live import accrue_an_hour
from bench.ledger.measure import STEPS, measure_month
from bench.ledger.questions import QUESTIONS, ask
from bench.ledger.shape import shape_of
from models.schema import upgrade
from models.session import Database
from tests.postgresql import PostgreSQL


@pytest.fixture
def empty(postgresql: PostgreSQL) -> Iterator[Database]:
    url = postgresql.create()
    with opened(url, pool_size=2) as database:
        upgrade(database)
        yield database
    postgresql.drop(url)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(report_command)
    return CliRunner().invoke(app, arguments)


def rules(database: Database) -> set[str]:
    """Every index and constraint of the ledger's entries, as the database writes them."""
    with database.read() as session:
        indexes = session.scalars(
            text("SELECT indexdef FROM pg_indexes WHERE tablename = 'ledger_entries'")
        ).all()
        constraints = session.scalars(
            text(
                "SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint "
                "WHERE conrelid = 'ledger_entries'::regclass"
            )
        ).all()
        return {*indexes, *constraints}


def test_a_small_month_is_as_it_should_be_and_a_changed_hour_is_found(empty: Database) -> None:
    before, ticks = rules(empty), list[str]()
    seen = measure_month(empty, shape_of(10_000), ticks.append)
    assert len(ticks) == STEPS
    assert seen.wrong == []
    assert 8_000 < seen.rows < 12_000
    assert 0 < seen.hour_rows < seen.rows
    assert {answer.name: answer.line_count > 5 for answer in seen.answers} == dict.fromkeys(
        (question.name for question in QUESTIONS), True
    )
    assert rules(empty) == before, "all are there again"
    with empty.write() as session:
        session.execute(text("UPDATE ledger_hours SET quantity = quantity + 1 WHERE meter = 'output_tokens'"))
    assert not ask(empty, QUESTIONS[0]).is_equal


def test_an_hour_of_live_caches_is_posted_once(empty: Database) -> None:
    accrued = accrue_an_hour(empty, 120)
    assert (accrued.entries, accrued.entries_again, accrued.wrong) == (120, 0, [])


@pytest.mark.long
def test_the_command_prints_its_figures() -> None:
    result = run("--rows", "10000", "--caches", "100")
    assert result.exit_code == 0, result.output
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["benchmark"] == "report"
    assert seen["wrong"] == []
    assert 0 < seen["report_s"] == max(each["report_s"] for each in seen["month"]["reports"].values())
    assert seen["accrual_s"] > 0
    assert seen["rows_per_s"] > 0
    assert all(each["equal"] for each in seen["month"]["reports"].values())


def test_without_postgresql_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_programs", lambda: None)
    result = run("--rows", "10000")
    assert result.exit_code == 1
    assert "programs are not on this machine" in result.stderr
