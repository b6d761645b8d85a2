from collections.abc import Iterator
from datetime import datetime

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from models.cache import insert_cache
from models.session import Database
from models.usage import (
    UsageKind,
    UsageState,
    finalise,
    find_unposted,
    find_usage,
    insert,
    lock_unposted,
    void,
    void_of_dead,
)
from tests.fakes.clock import START
from tests.models.rows import Customer, add_customer, after, make_cache, make_usage

CREATE = {
    "kind": UsageKind.CREATE,
    "prompt_tokens": 0,
    "input_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 3,
    "state": UsageState.FINAL,
    "occurred_at": START,
}
FINAL: dict[str, object] = {"state": UsageState.FINAL, "occurred_at": START}


@pytest.fixture
def customer(database: Database) -> Customer:
    with database.write() as session:
        customer = add_customer(session, "one")
        insert_cache(session, make_cache(customer, id="c1"))
        return customer


class TestChecks:
    @pytest.mark.parametrize(
        "columns",
        [
            {},
            {"cache_id": "c1"},
            CREATE | {"cache_id": "c1"},
            FINAL | {"implicit_cache_tokens": 3},
            FINAL | {"cache_id": "c1", "implicit_cache_tokens": 1},
        ],
    )
    def test_rows_as_they_should_be_are_accepted(
        self, database: Database, customer: Customer, columns: dict[str, object]
    ) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, **columns))

    @pytest.mark.parametrize(
        ("columns", "check"),
        [
            ({"input_tokens": 8}, "prompt_parts"),
            ({"cache_read_tokens": 4}, "prompt_parts"),
            ({"input_tokens": -1, "cache_read_tokens": 11}, "tokens_not_negative"),
            ({"input_tokens": 11, "cache_read_tokens": -1}, "(tokens_not_negative|implicit_part)"),
            (FINAL | {"implicit_cache_tokens": -1}, "implicit_part"),
            (FINAL | {"implicit_cache_tokens": 4}, "implicit_part"),
            ({"implicit_cache_tokens": 1}, "implicit_when_final"),
            (FINAL | {"state": UsageState.VOID, "implicit_cache_tokens": 1}, "implicit_when_final"),
            (CREATE | {"cache_id": "c1", "implicit_cache_tokens": 1}, "implicit_part"),
            ({"attempt": 0}, "attempt_positive"),
            ({"cache_write_tokens": 1}, "kind_meters"),
            (CREATE, "kind_meters"),
            (CREATE | {"cache_id": "c1", "cache_write_tokens": 0}, "kind_meters"),
            (CREATE | {"cache_id": "c1", "prompt_tokens": 3, "input_tokens": 3}, "kind_meters"),
            ({"output_tokens": 1}, "state_instants"),
            ({"occurred_at": START}, "state_instants"),
            ({"end_reason": "STOP"}, "state_instants"),
            ({"state": UsageState.FINAL}, "state_instants"),
            ({"state": UsageState.VOID}, "state_instants"),
            ({"state": UsageState.FINAL, "occurred_at": after(-1)}, "state_instants"),
        ],
    )
    def test_a_row_that_cannot_be_true_is_refused(
        self, database: Database, customer: Customer, columns: dict[str, object], check: str
    ) -> None:
        with pytest.raises(IntegrityError, match=f"ck_usage_{check}"), database.write() as session:
            insert(session, make_usage(customer, **columns))

    def test_nobody_uses_another_projects_cache(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            other = add_customer(session, "two")
        with pytest.raises(IntegrityError, match=r"(?i)foreign key"), database.write() as session:
            insert(session, make_usage(other, cache_id="c1"))

    def test_a_request_is_counted_once(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_1"))
        with pytest.raises(IntegrityError), database.write() as session:
            insert(session, make_usage(customer, id="gen_1"))


class TestSettle:
    def test_a_reserved_row_is_finalised_once(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_1"))
        with database.write() as session:
            assert finalise(session, "gen_1", 1, 5, after(2), "STOP")
        with database.write() as session:
            assert not finalise(session, "gen_1", 1, 6, after(3), "CANCELLED")
            assert not void(session, "gen_1", 1, after(3), "FAILED")
        assert settled(database, "gen_1") == (UsageState.FINAL, 5, after(2), "STOP")

    def test_what_was_found_there_moves_from_computed_to_read(
        self, database: Database, customer: Customer
    ) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_1"))
            assert finalise(session, "gen_1", 1, 5, after(2), "STOP", implicit_cache_tokens=6)
        with database.read() as session:
            row = find_usage(session, "gen_1")
            assert row is not None
            parts = (row.prompt_tokens, row.input_tokens, row.cache_read_tokens, row.implicit_cache_tokens)
            assert parts == (10, 1, 9, 6)

    def test_no_more_is_found_than_was_asked(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_1"))
        for tokens, check in ((8, "tokens_not_negative"), (-1, "implicit_part")):
            with pytest.raises(IntegrityError, match=f"ck_usage_{check}"), database.write() as session:
                finalise(session, "gen_1", 1, 5, after(2), "STOP", implicit_cache_tokens=tokens)
        assert settled(database, "gen_1")[0] == UsageState.RESERVED

    def test_a_reserved_row_is_voided_once(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_1"))
            assert void(session, "gen_1", 1, after(2), "ARENA_FULL")
            assert not finalise(session, "gen_1", 1, 6, after(3), "STOP")
        assert settled(database, "gen_1") == (UsageState.VOID, 0, after(2), "ARENA_FULL")

    @pytest.mark.parametrize(("usage_id", "attempt"), [("gen_1", 1), ("gen_1", 3), ("gen_2", 2)])
    def test_an_attempt_that_no_longer_holds_the_row_settles_nothing(
        self, database: Database, customer: Customer, usage_id: str, attempt: int
    ) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_1", attempt=2))
            assert not finalise(session, usage_id, attempt, 5, after(2), "STOP")
            assert not void(session, usage_id, attempt, after(2), "FAILED")
        assert settled(database, "gen_1") == (UsageState.RESERVED, 0, None, None)

    def test_a_clock_that_was_set_back_does_not_keep_a_row_from_being_settled(
        self, database: Database, customer: Customer
    ) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_1"))
            assert finalise(session, "gen_1", 1, 5, after(-60), "STOP")
        assert settled(database, "gen_1") == (UsageState.FINAL, 5, START, "STOP")

    def test_what_dead_lives_left_reserved_is_void_and_nothing_else_is(
        self, database: Database, customer: Customer
    ) -> None:
        with database.write() as session:
            insert(session, make_usage(customer, id="gen_0", incarnation="inc_0"))
            insert(session, make_usage(customer, id="gen_1", incarnation="inc_1"))
            insert(session, make_usage(customer, id="gen_2", incarnation="inc_0"))
            finalise(session, "gen_2", 1, 5, after(1), "STOP")
        with database.write() as session:
            assert void_of_dead(session, "inc_1", after(9)) == 1
        assert settled(database, "gen_0") == (UsageState.VOID, 0, after(9), "WORKER_LOST")
        assert settled(database, "gen_1")[0] == UsageState.RESERVED
        assert settled(database, "gen_2")[0] == UsageState.FINAL


class TestUnposted:
    @pytest.fixture
    def session(self, database: Database, customer: Customer) -> Iterator[Session]:
        """Owed rows of which one is posted, and others that are not owed."""
        with database.write() as session:
            for name, changes in {
                "gen_1": FINAL,
                "gen_2": FINAL | {"is_posted": True},
                "gen_3": FINAL | {"occurred_at": after(5)},
                "gen_4": {},
                "gen_5": {"state": UsageState.VOID, "occurred_at": START},
            }.items():
                insert(session, make_usage(customer, id=name, **changes))
            yield session

    def test_are_owed_rows_that_the_ledger_lacks(self, session: Session) -> None:
        assert [row.id for row in lock_unposted(session, 10)] == ["gen_1", "gen_3"]
        assert [row.id for row in lock_unposted(session, 1)] == ["gen_1"]

    def test_are_looked_for_before_an_instant(self, session: Session) -> None:
        assert find_unposted(session, START) is None
        assert find_unposted(session, after(1)) == "gen_1"

    def test_only_what_is_owed_can_be_posted(self, session: Session, customer: Customer) -> None:
        with pytest.raises(IntegrityError, match="posted_when_final"):
            insert(session, make_usage(customer, id="gen_6", is_posted=True))


def settled(database: Database, usage_id: str) -> tuple[UsageState, int, datetime | None, str | None]:
    with database.read() as session:
        row = find_usage(session, usage_id)
        assert row is not None
        return row.state, row.output_tokens, row.occurred_at, row.end_reason
