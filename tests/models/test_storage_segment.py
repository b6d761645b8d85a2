import pytest
from sqlalchemy.exc import IntegrityError

from models.cache import insert_cache
from models.session import Database
from models.storage_segment import (
    StorageSegment,
    find_unposted_before,
    insert,
    list_segments_beyond_ledger,
    lock_segment,
    lock_segments_to_accrue,
    move_end,
)
from tests.models.rows import Customer, add_customer, after, make_cache


@pytest.fixture
def customer(database: Database) -> Customer:
    with database.write() as session:
        customer = add_customer(session, "one")
        for cache_id in ("c1", "c2"):
            insert_cache(session, make_cache(customer, id=cache_id))
        return customer


def segment(
    customer: Customer,
    cache_id: str,
    start: float = 0,
    end: float = 10,
    tokens: int = 3,
    accrued: float | None = None,
) -> StorageSegment:
    return StorageSegment(
        cache_id=cache_id,
        project_id=customer.project_id,
        key_id=customer.key_id,
        model="tiny",
        token_count=tokens,
        started_at=after(start),
        ends_at=after(end),
        accrued_until=after(start if accrued is None else accrued),
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


@pytest.mark.parametrize(
    ("end", "tokens", "accrued"), [(-0.000001, 3, 0), (10, 0, 0), (10, 3, 10.000001), (10, 3, -0.000001)]
)
def test_a_segment_that_cannot_be_true_is_refused(
    database: Database, customer: Customer, end: float, tokens: int, accrued: float
) -> None:
    with pytest.raises(IntegrityError, match="ck_storage_segments"), database.write() as session:
        insert(session, segment(customer, "c1", end=end, tokens=tokens, accrued=accrued))


def test_an_end_moves_and_never_before_what_is_posted(database: Database, customer: Customer) -> None:
    with database.write() as session:
        insert(session, segment(customer, "c1", accrued=4))
        row = lock_segment(session, "c1")
        assert row is not None
        move_end(session, row, after(4))
    with database.write() as session:
        row = lock_segment(session, "c1")
        assert row is not None
    with pytest.raises(IntegrityError, match="accrued_within"), database.write() as session:
        move_end(session, session.merge(row), after(3.999999))


def test_a_cache_that_was_never_active_has_none(database: Database, customer: Customer) -> None:
    with database.write() as session:
        assert lock_segment(session, "c2") is None


class TestWhatIsToBePosted:
    @pytest.fixture
    def caches(self, database: Database, customer: Customer) -> Database:
        """Kept from 0 to 10 and posted to 4; from 10 to 20, posted whole; another project's from 5 to 15."""
        with database.write() as session:
            other = add_customer(session, "two")
            insert_cache(session, make_cache(other, id="c3"))
            insert(session, segment(customer, "c1", 0, 10, accrued=4))
            insert(session, segment(customer, "c2", 10, 20, accrued=20))
            insert(session, segment(other, "c3", 5, 15))
        return database

    @pytest.mark.parametrize(
        ("now", "hour", "expected"),
        [
            (9, 4, []),  # posted to the hour
            (9, 6, ["c1", "c3"]),
            (9, 5, ["c1"]),
            (10, 4, ["c1"]),  # its end has passed
            (15, 4, ["c1", "c3"]),
            (99, 99, ["c1", "c3"]),
        ],
    )
    def test_is_what_ended_and_what_is_kept_since_the_hour(
        self, caches: Database, now: float, hour: float, expected: list[str]
    ) -> None:
        with caches.write() as session:
            found = lock_segments_to_accrue(session, after(now), after(hour), 10)
            assert [row.cache_id for row in found] == expected
            assert [
                row.cache_id for row in lock_segments_to_accrue(session, after(now), after(hour), 1)
            ] == expected[:1]

    def test_is_found_by_the_period_it_falls_into(self, caches: Database, customer: Customer) -> None:
        with caches.read() as session:

            def listed(start: float, end: float, project_id: str | None = None) -> list[str]:
                found = list_segments_beyond_ledger(session, after(start), after(end), project_id)
                return [row.cache_id for row in found]

            assert listed(0, 20) == ["c1", "c3"]
            assert listed(0, 20, customer.project_id) == ["c1"]
            assert listed(0, 4) == []
            assert listed(0, 5) == ["c1"]
            assert listed(10, 15) == ["c3"]
            assert listed(15, 30) == []

    def test_keeps_a_month_from_being_closed(self, caches: Database) -> None:
        with caches.read() as session:
            assert find_unposted_before(session, after(4)) is None
            assert find_unposted_before(session, after(4.5)) == "c1"
