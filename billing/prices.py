"""The stored prices: how a price book gets into them, and which requests they allow.

Stored prices that are in force never change, so a bill, once given, can be given again. All that may still move of one is
an end that is yet to come.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.price import ANY, Price, in_order, in_words
from billing.price_book import PriceBook
from billing.timelines import Prices, price_missing
from core.errors import PriceBookInvalid, PriceMissing, ProjectNotFound
from models import price as rows
from models.project import get_project_named


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


def store(session: Session, book: PriceBook, now: datetime) -> None:
    """Make the stored prices those of the book, in the caller's write unit.

    Raises PriceBookInvalid for whatever would change a bill already given: a price in force that the book changes or drops,
    an end that has passed and moves, and a price added behind the present where another one held. Prices to come may be
    changed freely.
    """
    wanted = {_key(price): price for price in with_project_ids(session, book).prices}
    stored = {_key(_price(row)): row for row in rows.list_prices(session)}
    begun = [price for price in map(_price, stored.values()) if price.effective_from <= now]
    for price in begun:
        _check_history(book, price, wanted.get(_key(price)), now)
    for key, price in wanted.items():
        if price.effective_from <= now and key not in stored:
            _check_nothing_replaced(book, price, begun, now)
    for key, row in stored.items():
        if key not in wanted or not _is_begun_or_same(_price(row), wanted[key], now):
            rows.delete(session, row)
    for key, price in sorted(wanted.items(), key=lambda item: item[1].effective_from):
        held = stored.get(key)
        if held is None or not _is_begun_or_same(_price(held), price, now):
            rows.insert(session, _row(price))
        elif held.effective_to != price.effective_to:
            rows.move_end(session, held, price.effective_to)


def with_project_ids(session: Session, book: PriceBook) -> PriceBook:
    """The book with each project it names by the id; raises PriceBookInvalid for one that does not exist."""
    ids = {ANY: ANY}
    for price in book.prices:
        if price.project_id not in ids:
            try:
                ids[price.project_id] = get_project_named(session, price.project_id).id
            except ProjectNotFound as error:
                raise PriceBookInvalid(
                    f"Price book {book.source}: there is no project {price.project_id!r}; `headstart projects list` shows "
                    "those there are.",
                    field="project",
                ) from error
    prices = [replace(price, project_id=ids[price.project_id]) for price in book.prices]
    if len({_key(price) for price in prices}) < len(prices):
        raise PriceBookInvalid(
            f"Price book {book.source}: it names one project by its name and by its id, with a price for the same meter and "
            "instant. Name it in one way.",
            field="project",
        )
    return PriceBook(book.source, tuple(in_order(prices)))


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


def _key(price: Price) -> tuple[str, str, Meter, datetime]:
    return (*price.subject, price.effective_from)


def _has(prices: Prices, project_id: str, model: str, meter: Meter, at: datetime) -> bool:
    try:
        prices.at(project_id, model, meter, at)
    except PriceMissing:
        return False
    return True


def _is_begun_or_same(stored: Price, wanted: Price, now: datetime) -> bool:
    """Whether the row stays: one that has begun, of which only the end may move, or one that the book repeats."""
    return stored.effective_from <= now or stored == wanted


def _check_history(book: PriceBook, held: Price, wanted: Price | None, now: datetime) -> None:
    if wanted is None or wanted.nano_usd_per_million != held.nano_usd_per_million:
        raise _history_changed(book, held, "changes or drops it")
    has_ended = held.effective_to is not None and held.effective_to <= now
    would_have_ended = wanted.effective_to is not None and wanted.effective_to <= now
    if held.effective_to != wanted.effective_to and (has_ended or would_have_ended):
        raise _history_changed(book, held, "lets it end at another instant than it did, or in the past")


def _check_nothing_replaced(book: PriceBook, price: Price, begun: Sequence[Price], now: datetime) -> None:
    until = now if price.effective_to is None else min(price.effective_to, now)
    for other in begun:
        is_behind = other.meter == price.meter
        is_behind &= other.model in (price.model, ANY) and other.project_id in (price.project_id, ANY)
        # At the present instant something may have been charged already.
        if is_behind and (other.overlaps(price.effective_from, until) or other.holds_at(until)):
            raise PriceBookInvalid(
                f"Price book {book.source}: the price of {in_words(price)} lies behind the present, where that of "
                f"{in_words(other)} may have been charged already. Give it an effective_from that is still to come.",
                field="effective_from",
            )


def _history_changed(book: PriceBook, price: Price, how: str) -> PriceBookInvalid:
    return PriceBookInvalid(
        f"Price book {book.source}: the price of {in_words(price)} is in force at {price.nano_usd_per_million} nano-USD "
        f"per million, and the book {how}. Put that row back and add one with a later effective_from beside it; "
        "`headstart billing prices show --toml` prints the rows in force.",
        field="nano_usd_per_million",
    )
