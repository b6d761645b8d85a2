from collections.abc import Iterator

import pytest
from sqlalchemy import event, inspect, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.orm import Session

from models.cache import (
    Cache,
    CacheEndReason,
    CacheState,
    count_live,
    find_cache,
    find_cache_with_content,
    find_prefix,
    insert_cache,
    list_caches_to_rebuild,
    list_live_caches,
    list_live_fingerprints,
    lock_active_of_other_fingerprints,
    lock_cache,
    lock_cache_by_id,
    lock_cache_shared,
    lock_due,
    lock_pending_of_dead,
    mark_ended,
)
from models.session import Database
from tests.fakes.clock import START
from tests.models.rows import ACTIVE, DELETED, EXPIRED, FAILED, Customer, add_customer, after, make_cache


@pytest.fixture
def customer(database: Database) -> Customer:
    with database.write() as session:
        return add_customer(session, "one")


@pytest.fixture
def session(database: Database, customer: Customer) -> Iterator[Session]:
    with database.write() as session:
        yield session


def add(session: Session, customer: Customer, **changes: object) -> Cache:
    cache = make_cache(customer, **changes)
    insert_cache(session, cache)
    return cache


class TestChecks:
    @pytest.mark.parametrize("columns", [{}, ACTIVE, EXPIRED, DELETED, FAILED])
    def test_each_state_as_it_should_be_is_accepted(
        self, session: Session, customer: Customer, columns: dict[str, object]
    ) -> None:
        add(session, customer, **columns)

    @pytest.mark.parametrize(
        ("columns", "check"),
        [
            ({"token_count": 0}, "token_count_positive"),
            ({"fencing_token": 0}, "fencing_token_positive"),
            ({"expire_at": START}, "expire_after_created"),
            ({"updated_at": after(-1)}, "updated_after_created"),
            # Content is there before the end and gone after it, column by column.
            ({"prefix_text": None}, "content_until_end"),
            ({"messages": None}, "content_until_end"),
            ({"token_ids": None}, "content_until_end"),
            (ACTIVE | {"token_ids": None}, "content_until_end"),
            *(
                (ended | {column: value}, "content_until_end")
                for ended in (EXPIRED, DELETED, FAILED)
                for column, value in (("prefix_text", "x"), ("messages", []), ("token_ids", (1,)))
            ),
            # Each state has its instants and no others.
            ({"activated_at": START}, "activated_by_state"),
            ({"state": CacheState.ACTIVE}, "activated_by_state"),
            (ACTIVE | {"activated_at": after(-1)}, "activated_after_created"),
            (ACTIVE | {"activated_at": after(3600)}, "activated_before_expire"),
            (ACTIVE | {"ended_at": after(1), "end_reason": "EXPIRED"}, "(ended|end_reason)_by_state"),
            ({"ended_at": after(1), "end_reason": "FAILED"}, "(ended|end_reason)_by_state"),
            *(
                (ended | {"ended_at": None, "end_reason": None}, "ended_by_state")
                for ended in (EXPIRED, DELETED)
            ),
            (FAILED | {"ended_at": None, "end_reason": None}, "ended_by_state"),
            (EXPIRED | {"activated_at": None}, "activated_by_state"),
            (DELETED | {"activated_at": None}, "activated_by_state"),
            (FAILED | {"activated_at": START}, "activated_by_state"),
            (DELETED | {"activated_at": after(20)}, "ended_after_activated"),
            (FAILED | {"ended_at": after(-1)}, "ended_after_created"),
            # An expired cache ended when it was to end, not when somebody noticed.
            (EXPIRED | {"ended_at": after(3601)}, "end_reason_by_state"),
            (EXPIRED | {"end_reason": None}, "end_reason_when_ended"),
            (EXPIRED | {"end_reason": "DELETED"}, "end_reason_by_state"),
            (DELETED | {"end_reason": "EXPIRED"}, "end_reason_by_state"),
            (FAILED | {"end_reason": "DELETED"}, "end_reason_by_state"),
            (FAILED | {"failure": None}, "failure_of_failed"),
            (ACTIVE | {"failure": "cancelled"}, "failure_of_failed"),
        ],
    )
    def test_what_a_state_rules_out_is_refused(
        self, database: Database, customer: Customer, columns: dict[str, object], check: str
    ) -> None:
        with pytest.raises(IntegrityError, match=f"ck_caches_{check}"), database.write() as session:
            add(session, customer, **columns)

    def test_a_state_that_does_not_exist_is_refused(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            add(session, customer)
        with pytest.raises(IntegrityError, match=r"(?i)check"), database.write() as session:
            session.execute(text("UPDATE caches SET state = 'LOST', activated_at = created_at"))

    @pytest.mark.parametrize("columns", [{"project_id": "proj_none"}, {"key_id": "key_none"}])
    def test_a_cache_has_an_owner_and_a_key(
        self, database: Database, customer: Customer, columns: dict[str, object]
    ) -> None:
        with pytest.raises(IntegrityError, match=r"(?i)foreign key"), database.write() as session:
            add(session, customer, **columns)


class TestFind:
    def test_a_cache_is_found_with_its_content(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            cache_id = add(session, customer).id
        with database.read() as session:
            cache = find_cache_with_content(session, customer.project_id, cache_id)
            assert cache is not None
            assert cache.messages == [{"role": "user", "text": "Words"}]
            assert cache.prefix_text == "<user>Words"
            assert cache.display_name == ""
            assert find_prefix(session, cache_id) == (customer.project_id, (1, 2, 3))
            assert find_cache(session, customer.project_id, "other") is None
            assert find_prefix(session, "other") is None

    def test_another_projects_cache_is_not_found_by_any_door(
        self, session: Session, customer: Customer
    ) -> None:
        cache_id = add(session, customer).id
        other = add_customer(session, "two").project_id
        for find in (find_cache, find_cache_with_content, lock_cache, lock_cache_shared):
            assert find(session, other, cache_id) is None
            assert find(session, customer.project_id, cache_id) is not None

    def test_a_hit_does_not_load_the_token_ids(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            cache_id = add(session, customer).id
        statements: list[str] = []
        with database.write() as session:
            event.listen(
                session.connection(), "before_cursor_execute", lambda *call: statements.append(call[2])
            )
            found = find_cache_with_content(session, customer.project_id, cache_id)
            lock_cache_shared(session, customer.project_id, cache_id)
            assert found is not None
            with pytest.raises(InvalidRequestError, match="raiseload"):
                _ = found.token_ids
        assert len(statements) == 2
        assert not any("token_ids" in statement for statement in statements)

    def test_what_is_shown_of_a_cache_needs_no_content(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            cache_id = add(session, customer).id
        with database.read() as session:
            cache = find_cache(session, customer.project_id, cache_id)
            assert cache is not None
            assert set(inspect(cache).unloaded) == {"prefix_text", "messages", "token_ids"}

    def test_a_lock_reads_what_is_stored_now(self, database: Database, customer: Customer) -> None:
        with database.write() as session:
            cache_id = add(session, customer).id
            cache = find_cache(session, customer.project_id, cache_id)
            assert cache is not None
            session.execute(text("UPDATE caches SET fencing_token = 2"))
            assert lock_cache_by_id(session, cache_id) is cache
            assert cache.fencing_token == 2


class TestLists:
    def test_live_caches_come_newest_first_in_pages(self, session: Session, customer: Customer) -> None:
        for index in range(5):  # two at one instant: the id decides
            at = after(min(index, 3))
            add(
                session,
                customer,
                **ACTIVE | {"id": f"c{index}", "created_at": at, "updated_at": at, "activated_at": at},
            )
        project_id = customer.project_id
        pages = []
        before = None
        while page := list_live_caches(session, project_id, after(9), 2, before):
            pages.append([cache.id for cache in page])
            before = (page[-1].created_at, page[-1].id)
        assert pages == [["c4", "c3"], ["c2", "c1"], ["c0"]]

    def test_what_is_not_usable_is_not_listed(self, session: Session, customer: Customer) -> None:
        for columns in ({}, EXPIRED, DELETED, FAILED):
            add(session, customer, **columns)
        add(session, customer, **ACTIVE | {"expire_at": after(50)})  # expired, and not swept
        other = add_customer(session, "two")
        add(session, other, **ACTIVE)
        alive = add(session, customer, **ACTIVE | {"expire_at": after(50.000001)})
        assert [cache.id for cache in list_live_caches(session, customer.project_id, after(50), 9, None)] == [
            alive.id
        ]

    def test_what_is_usable_or_will_be_is_counted(self, session: Session, customer: Customer) -> None:
        for columns in ({}, ACTIVE, EXPIRED, DELETED, FAILED, ACTIVE | {"expire_at": after(50)}):
            add(session, customer, **columns)
        assert count_live(session, customer.project_id, after(49)) == 3
        assert count_live(session, customer.project_id, after(50)) == 2

    def test_live_caches_are_found_by_their_model(self, session: Session, customer: Customer) -> None:
        for columns in ({}, EXPIRED, ACTIVE | {"expire_at": after(50)}, ACTIVE | {"fingerprint": "aa:cc"}):
            add(session, customer, **columns)
        later = add(
            session,
            customer,
            **ACTIVE | {"created_at": after(1), "updated_at": after(1), "activated_at": after(1)},
        )
        first = add(session, customer, **ACTIVE)
        assert [cache.id for cache in list_caches_to_rebuild(session, "aa:bb", after(50))] == [
            first.id,
            later.id,
        ]
        assert list_live_fingerprints(session, after(50)) == {"aa:bb": 2, "aa:cc": 1}
        assert {cache.fingerprint for cache in lock_active_of_other_fingerprints(session, "aa:bb")} == {
            "aa:cc"
        }

    def test_due_caches_come_in_the_order_they_expired(self, session: Session, customer: Customer) -> None:
        add(session, customer, **EXPIRED | {"expire_at": after(5), "ended_at": after(5)})
        second = add(session, customer, **ACTIVE | {"expire_at": after(20)})
        first = add(session, customer, expire_at=after(10))
        add(session, customer, expire_at=after(30.000001))
        assert [cache.id for cache in lock_due(session, after(30), 9)] == [first.id, second.id]
        assert [cache.id for cache in lock_due(session, after(30), 1)] == [first.id]

    def test_only_unbuilt_caches_of_other_lives_are_left_behind(
        self, session: Session, customer: Customer
    ) -> None:
        left = add(session, customer, incarnation="inc_0")
        add(session, customer, incarnation="inc_1")
        add(session, customer, **ACTIVE | {"incarnation": "inc_0"})
        assert [cache.id for cache in lock_pending_of_dead(session, "inc_1")] == [left.id]


def test_ending_a_cache_that_was_locked_removes_content_that_was_never_loaded(
    database: Database, customer: Customer
) -> None:
    with database.write() as session:
        cache_id = add(session, customer, display_name="what it is about", **ACTIVE).id
    with database.write() as session:
        cache = lock_cache(session, customer.project_id, cache_id)
        assert cache is not None
        mark_ended(cache, CacheState.DELETED, CacheEndReason.DELETED, ended_at=after(9), at=after(9))
    with database.read() as session:
        columns = "state, prefix_text, messages, token_ids, display_name"
        row = session.execute(text(f"SELECT {columns} FROM caches")).one()
    assert tuple(row) == ("DELETED", None, None, None, "")


def test_content_stands_last_in_a_row(database: Database) -> None:
    """SQLite walks through every page of a row up to the column it wants: a lease must not read a book for a state."""
    with database.read() as session:
        columns = [column["name"] for column in inspect(session.connection()).get_columns("caches")]
    assert columns[-3:] == ["prefix_text", "messages", "token_ids"]
    assert columns == [column.name for column in Cache.__table__.columns]
