from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from models.price import Price, delete, insert, list_prices, list_prices_at, move_end
from models.session import Database
from tests.databases import Kind
from tests.fakes.clock import START


def price(model: str = "m", meter: str = "input_tokens", *, days: int = 0, amount: int = 100) -> Price:
    return Price(
        model=model, meter=meter, nano_usd_per_million=amount, effective_from=START + timedelta(days=days)
    )


def test_prices_are_listed_by_model_meter_and_date(database: Database) -> None:
    with database.write() as session:
        rows = [price("b"), price("a", days=1), price("a"), price("a", "cache_read_tokens")]
        rows[2].effective_to = rows[1].effective_from
        for row in rows:
            insert(session, row)
        assert list(list_prices(session)) == [rows[3], rows[2], rows[1], rows[0]]


def test_a_deleted_price_is_gone(database: Database) -> None:
    with database.write() as session:
        row = price()
        insert(session, row)
        delete(session, row)
        assert list_prices(session) == []


def test_one_model_and_meter_has_one_price_at_a_time(database: Database) -> None:
    with database.write() as session:
        insert(session, price(amount=1))
    with pytest.raises(IntegrityError), database.write() as session:
        insert(session, price(amount=2))


def test_another_project_has_a_price_of_its_own_at_the_same_time(database: Database) -> None:
    with database.write() as session:
        insert(session, price(amount=1))
        own = price(amount=2)
        own.project_id = "p"
        insert(session, own)
        assert [row.project_id for row in list_prices(session)] == ["*", "p"]


def test_no_price_ends_before_it_begins(database: Database) -> None:
    row = price()
    row.effective_to = START
    with pytest.raises(IntegrityError, match="effective_to_after_from"), database.write() as session:
        insert(session, row)


def test_two_prices_of_one_subject_never_hold_at_once_on_postgresql(database: Database, kind: Kind) -> None:
    """SQLite has no such constraint: there the price book is checked, and nothing else writes prices."""
    with database.write() as session:
        insert(session, price())
    overlapping = price(days=1)
    if kind is Kind.SQLITE:
        with database.write() as session:
            insert(session, overlapping)
        return
    with pytest.raises(IntegrityError, match="ex_prices_no_overlap"), database.write() as session:
        insert(session, overlapping)


def test_the_prices_that_hold_at_an_instant_are_found(database: Database) -> None:
    day = timedelta(days=1)
    with database.write() as session:
        first, second, other = price(amount=1), price(days=1, amount=2), price("other")
        first.effective_to = START + day
        for row in (first, second, other):
            insert(session, row)

        def amounts(at: timedelta) -> list[int]:
            found = list_prices_at(session, ["*", "p"], ["m", "*"], START + at)
            return [row.nano_usd_per_million for row in found]

        assert amounts(timedelta(microseconds=-1)) == []
        assert amounts(timedelta()) == amounts(day - timedelta(microseconds=1)) == [1]
        assert amounts(day) == amounts(9 * day) == [2]
        move_end(session, second, START + 2 * day)
        assert amounts(2 * day) == []


def test_no_price_is_negative(database: Database) -> None:
    with pytest.raises(IntegrityError, match="not_negative"), database.write() as session:
        insert(session, price(amount=-1))
