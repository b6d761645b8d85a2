from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from models.price import Price, delete, insert, list_prices
from models.session import Database
from tests.fakes.clock import START


def price(model: str = "m", meter: str = "input_tokens", *, days: int = 0, amount: int = 100) -> Price:
    return Price(
        model=model, meter=meter, nano_usd_per_million=amount, effective_from=START + timedelta(days=days)
    )


def test_prices_are_listed_by_model_meter_and_date(database: Database) -> None:
    with database.write() as session:
        rows = [price("b"), price("a", days=1), price("a"), price("a", "cache_read_tokens")]
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


def test_no_price_is_negative(database: Database) -> None:
    with pytest.raises(IntegrityError, match="not_negative"), database.write() as session:
        insert(session, price(amount=-1))
