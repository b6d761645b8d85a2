import pytest
from sqlalchemy.exc import IntegrityError, NoResultFound

from models.cache import insert_cache
from models.session import Database
from models.storage_segment import StorageSegment, get_segment, insert, list_segments, move_end
from tests.fakes.clock import START
from tests.models.rows import Customer, add_customer, after, make_cache


@pytest.fixture
def customer(database: Database) -> Customer:
    with database.write() as session:
        customer = add_customer(session, "one")
        for cache_id in ("c1", "c2"):
            insert_cache(session, make_cache(customer, id=cache_id))
        return customer


def segment(
    customer: Customer, cache_id: str, start: float = 0, end: float = 10, tokens: int = 3
) -> StorageSegment:
    return StorageSegment(
        cache_id=cache_id,
        project_id=customer.project_id,
        model="tiny",
        token_count=tokens,
        started_at=after(start),
        ends_at=after(end),
    )


def test_a_cache_has_one_segment(database: Database, customer: Customer) -> None:
    with database.write() as session:
        insert(session, segment(customer, "c1"))
    with pytest.raises(IntegrityError), database.write() as session:
        insert(session, segment(customer, "c1", start=20, end=30))


def test_a_segment_belongs_to_a_cache_of_its_project(database: Database, customer: Customer) -> None:
    with database.write() as session:
        other = add_customer(session, "two")
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"), database.write() as session:
        insert(session, segment(other, "c1"))


@pytest.mark.parametrize(("end", "tokens"), [(-0.000001, 3), (10, 0)])
def test_a_segment_that_cannot_be_true_is_refused(
    database: Database, customer: Customer, end: float, tokens: int
) -> None:
    with pytest.raises(IntegrityError, match="ck_storage_segments"), database.write() as session:
        insert(session, segment(customer, "c1", end=end, tokens=tokens))


def test_an_end_moves_and_never_before_the_start(database: Database, customer: Customer) -> None:
    with database.write() as session:
        insert(session, segment(customer, "c1"))
        move_end(session, "c1", START)
    with database.read() as session:
        assert get_segment(session, "c1").ends_at == START
    with pytest.raises(IntegrityError, match="ends_after_started"), database.write() as session:
        move_end(session, "c1", after(-1))


def test_a_cache_that_was_never_active_has_none(database: Database, customer: Customer) -> None:
    with database.read() as session, pytest.raises(NoResultFound):
        get_segment(session, "c2")


def test_the_segments_that_overlap_a_period_are_listed(database: Database, customer: Customer) -> None:
    with database.write() as session:
        other = add_customer(session, "two")
        insert_cache(session, make_cache(other, id="c3"))
        insert(session, segment(customer, "c1", 0, 10))
        insert(session, segment(customer, "c2", 10, 20))
        insert(session, segment(other, "c3", 5, 15))

        def listed(start: float, end: float, project_id: str | None = None) -> list[str]:
            return [row.cache_id for row in list_segments(session, after(start), after(end), project_id)]

        assert listed(0, 20) == ["c1", "c3", "c2"]
        assert listed(0, 20, customer.project_id) == ["c1", "c2"]
        assert listed(0, 5) == ["c1"]
        assert listed(10, 15) == ["c3", "c2"]
        assert listed(20, 30) == []
