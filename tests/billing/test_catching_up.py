"""Much is done in small units, and others come in between."""

import pytest
from sqlalchemy.orm import Session

from billing.catching_up import Unit, in_units
from models.session import Database


def test_units_follow_each_other_and_let_others_write_in_between(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def another_unit(seconds: float) -> None:
        with database.write():
            pauses.append(seconds)

    def work(_session: Session, after: int) -> Unit[int]:
        return Unit(after + 1, is_last=after == 3, passed_over={f"{after}": "why"} if after % 2 else {})

    monkeypatch.setattr("billing.catching_up.time.sleep", another_unit)
    assert in_units(database, 0, work, lambda: False) == {"1": "why", "3": "why"}
    # Who waits for SQLite's one writer asks again after a tenth of a second at most: it finds nobody writing.
    assert len(pauses) == (3 if database.has_one_writer else 0)
    assert all(seconds > 0.1 for seconds in pauses)


def test_it_stops_between_units(database: Database) -> None:
    done: list[int] = []

    def work(_session: Session, after: int) -> Unit[int]:
        done.append(after)
        return Unit(after + 1, is_last=False)

    assert in_units(database, 0, work, lambda: len(done) == 2) == {}
    assert done == [0, 1]
