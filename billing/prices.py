"""The stored prices: how a price book gets into them, and which requests they allow.

Stored prices that are in force never change, so a bill, once given, can be given again. All that may still move of one is
an end that is yet to come.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.price import ANY, Price, in_order, in_words
from billing.price_book import PriceBook
from billing.price_diff import Change, diff
from billing.price_history import check_history
from billing.timelines import Prices, price_missing
from core.clock import Clock, instant
from core.errors import PriceBookInvalid, PriceMissing, ProjectNotFound
from models import price as rows
from models.project import get_project_named
from models.storage_segment import newest_accrual
from models.usage import newest_usage

NOTICE = timedelta(
    minutes=1
)  # for a price to be on record before it begins; far more than storing a book takes


def list_prices(session: Session) -> list[Price]:
    """Every stored price, sorted by subject and instant."""
    return in_order([_price(row) for row in rows.list_prices(session)])


def load_prices(session: Session) -> Prices:
    return Prices(list_prices(session))


def prices_at(session: Session, project_id: str, model: str, at: datetime) -> Prices:
    """What can apply to one project and model at one instant: enough to rate a usage row."""
    return Prices(map(_price, rows.list_prices_at(session, (project_id, ANY), (model, ANY), at)))


def require_prices(
    session: Session, project_id: str, model: str, meters: Sequence[Meter], at: datetime
) -> Prices:
    """Give the prices of a request before it is begun; raises PriceMissing if a meter that it can owe has none.

    Prices in force are never taken back, so what holds then holds when the request is charged.
    """
    prices = prices_at(session, project_id, model, at)
    missing = [meter for meter in meters if not _has(prices, project_id, model, meter, at)]
    if missing:
        raise price_missing(model, missing, at)
    return prices


def unpriced_meters(session: Session, model: str, at: datetime) -> list[Meter]:
    """The meters for which a model has no price that holds for everybody: what they count is refused."""
    prices = prices_at(session, ANY, model, at)
    return [meter for meter in Meter if not _has(prices, ANY, model, meter, at)]


def load_book(session: Session, book: PriceBook, clock: Clock) -> list[Change]:
    """Make the stored prices those of the book, and say what that changes; one book at a time. Raises as `store` does.

    On PostgreSQL requests go on meanwhile, at the prices that they see, so nothing may change before this is committed.
    """
    rows.lock_prices(session)
    before = list_prices(session)
    wanted = with_project_ids(session, book)
    store(session, wanted, instant(session, clock) + NOTICE)
    return diff(before, wanted.prices)


def store(session: Session, book: PriceBook, until: datetime) -> None:
    """Make the stored prices those of the book, in the caller's write unit.

    Raises PriceBookInvalid for whatever would change a bill already given: what held up to `until`, or up to the last instant
    in the books, where the clock was set back behind it, stays (`price_history`). Prices to come may be changed freely.
    """
    until = max(until, newest_usage(session, until) or until, newest_accrual(session) or until)
    wanted = {price.key: price for price in with_project_ids(session, book).prices}
    stored = {price.key: row for row in rows.list_prices(session) for price in [_price(row)]}
    check_history(book.source, map(_price, stored.values()), wanted.values(), until)
    for key, row in stored.items():
        if key not in wanted or not _is_begun_or_same(_price(row), wanted[key], until):
            rows.delete(session, row)
    for key, price in sorted(wanted.items(), key=lambda item: item[1].effective_from):
        held = stored.get(key)
        if held is None or not _is_begun_or_same(_price(held), price, until):
            rows.insert(session, _row(price))
        elif held.effective_to != price.effective_to:
            rows.move_end(session, held, price.effective_to)


def with_project_ids(session: Session, book: PriceBook) -> PriceBook:
    """The book with each project it names by the id; raises PriceBookInvalid for one that does not exist.

    A project must be named in one way: the book was checked by names, and two of one project would be two projects to it.
    """
    ids = {ANY: ANY}
    first: dict[str, Price] = {}
    for price in book.prices:
        if price.project_id not in ids:
            ids[price.project_id] = _project_id(session, book, price.project_id)
        other = first.setdefault(ids[price.project_id], price)
        if other.project_id != price.project_id:
            raise PriceBookInvalid(
                f"Price book {book.source}: {in_words(other)} and {in_words(price)} are prices of one project, by its name and "
                "by its id. Name it in one way.",
                field="project",
            )
    prices = [replace(price, project_id=ids[price.project_id]) for price in book.prices]
    return PriceBook(book.source, tuple(in_order(prices)))


def _project_id(session: Session, book: PriceBook, id_or_name: str) -> str:
    try:
        return get_project_named(session, id_or_name).id
    except ProjectNotFound as error:
        raise PriceBookInvalid(
            f"Price book {book.source}: there is no project {id_or_name!r}; `headstart projects list` shows those there are.",
            field="project",
        ) from error


def _price(row: rows.Price) -> Price:
    return Price(
        project_id=row.project_id,
        model=row.model,
        meter=Meter(row.meter),
        effective_from=row.effective_from,
        effective_to=row.effective_to,
        nano_usd_per_million=row.nano_usd_per_million,
        id=row.id,
    )


def _row(price: Price) -> rows.Price:
    return rows.Price(
        project_id=price.project_id,
        model=price.model,
        meter=price.meter,
        nano_usd_per_million=price.nano_usd_per_million,
        effective_from=price.effective_from,
        effective_to=price.effective_to,
    )


def _has(prices: Prices, project_id: str, model: str, meter: Meter, at: datetime) -> bool:
    try:
        prices.at(project_id, model, meter, at)
    except PriceMissing:
        return False
    return True


def _is_begun_or_same(stored: Price, wanted: Price, until: datetime) -> bool:
    """Whether the row stays: one that has begun, of which only the end may move, or one that the book repeats."""
    return stored.effective_from <= until or stored == wanted
