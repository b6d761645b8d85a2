import pytest
from sqlalchemy.exc import IntegrityError

from billing import usage
from billing.meters import Meter
from models.session import Database
from models.usage import Usage, UsageState, find_usage
from tests.billing.rows import T0, add_cache, add_prices, add_project, after, book, generate, reserve, write


@pytest.fixture(autouse=True)
def prices(database: Database) -> None:
    with database.write() as session:
        add_prices(session, book())


def test_each_meter_but_storage_and_a_part_is_a_column() -> None:
    columns = set(Usage.__table__.columns.keys())
    assert set(Meter) - columns == {Meter.CACHE_STORAGE_TOKEN_SECONDS, Meter.IMPLICIT_CACHE_READ_TOKENS}


class TestReserve:
    def test_splits_the_prompt_into_read_and_computed(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            add_cache(session, project, "c")
            reserve(session, project, "r", prompt=1010, cached=1000, cache_id="c")
        with database.read() as session:
            row = find_usage(session, "r")
            assert row is not None
            assert (row.prompt_tokens, row.input_tokens, row.cache_read_tokens) == (1010, 10, 1000)
            assert (row.state, row.output_tokens, row.occurred_at) == (UsageState.RESERVED, 0, None)

    def test_refuses_more_read_than_there_is_prompt(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            add_cache(session, project, "c")
        with pytest.raises(IntegrityError), database.write() as session:
            reserve(session, project, "r", prompt=10, cached=11, cache_id="c")

    def test_refuses_the_same_request_twice(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            reserve(session, project, "r", prompt=10)
        with pytest.raises(IntegrityError), database.write() as session:
            reserve(session, project, "r", prompt=10)

    def test_refuses_another_projects_cache(self, database: Database) -> None:
        with database.write() as session:
            owner, other = add_project(session, "p"), add_project(session, "q")
            add_cache(session, owner, "c")
        with pytest.raises(IntegrityError), database.write() as session:
            reserve(session, other, "r", prompt=10, cache_id="c")


class TestSettling:
    def test_a_row_is_settled_once(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            generate(session, project, "r", prompt=10, output=3)
            assert not usage.finalise(session, "r", 1, 4, after(1), "STOP")
            assert not usage.void(session, "r", 1, after(1), "FAILED")
            row = find_usage(session, "r")
            assert row is not None
            assert (row.state, row.output_tokens, row.occurred_at) == (UsageState.FINAL, 3, T0)

    def test_a_void_row_stays_void(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            reserve(session, project, "r", prompt=10)
            assert usage.void(session, "r", 1, after(1), "FAILED")
            assert not usage.finalise(session, "r", 1, 4, after(2), "STOP")

    def test_another_attempt_settles_nothing(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            reserve(session, project, "r", prompt=10)
            assert not usage.finalise(session, "r", 2, 4, after(1), "STOP")
            assert not usage.void(session, "r", 2, after(1), "FAILED")
            assert usage.finalise(session, "r", 1, 4, after(1), "STOP")

    def test_what_the_engine_found_moves_from_computed_to_read(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            add_cache(session, project, "c")
            generate(session, project, "r", prompt=1300, cached=1000, cache_id="c", implicit=256, output=3)
            row = find_usage(session, "r")
            assert row is not None
            assert (row.prompt_tokens, row.input_tokens) == (1300, 44)
            assert (row.cache_read_tokens, row.implicit_cache_tokens) == (1256, 256)

    def test_a_settlement_is_recognised_by_all_that_it_put_on_record(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            reserve(session, project, "r", prompt=10)
            assert not usage.was_finalised(session, "r", 1, 0, "STOP")
        with database.write() as session:
            assert usage.finalise(session, "r", 1, 3, after(1), "STOP", implicit_cache_tokens=2)
        with database.read() as session:
            assert usage.was_finalised(session, "r", 1, 3, "STOP", implicit_cache_tokens=2)
            assert not usage.was_finalised(session, "r", 1, 3, "STOP")
            assert not usage.was_finalised(session, "r", 1, 4, "STOP", implicit_cache_tokens=2)
            assert not usage.was_finalised(session, "r", 2, 3, "STOP", implicit_cache_tokens=2)
            assert not usage.was_finalised(session, "r", 1, 3, "CANCELLED", implicit_cache_tokens=2)
            assert not usage.was_finalised(session, "absent", 1, 3, "STOP", implicit_cache_tokens=2)

    def test_more_than_was_left_to_compute_is_refused(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
        with pytest.raises(IntegrityError), database.write() as session:
            generate(session, project, "r", prompt=10, implicit=11, output=3)

    def test_zero_output_stays_zero(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            generate(session, project, "r", prompt=10, output=0)
            row = find_usage(session, "r")
            assert row is not None
            assert (row.state, row.output_tokens) == (UsageState.FINAL, 0)


class TestRecordWrite:
    def test_charges_a_cache_once(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            add_cache(session, project, "c", tokens=1000)
            write(session, project, "c", tokens=1000)
            row = find_usage(session, "write:c")
            assert row is not None
            assert (row.state, row.cache_write_tokens, row.prompt_tokens) == (UsageState.FINAL, 1000, 0)
        with pytest.raises(IntegrityError), database.write() as session:
            write(session, project, "c", tokens=1000)
