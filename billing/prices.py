"""The stored prices: how a price book gets into them, and the one rule by which a price is found.

Stored prices that are in force never change, so a bill, once given, can be given again.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime

from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.price_book import ANY_MODEL, Price, PriceBook
from core.errors import PriceBookInvalid, PriceMissing
from models import price as rows


class Prices:
    """All prices as they are stored, for looking up many."""

    def __init__(self, prices: list[Price]) -> None:
        self._rows: dict[tuple[str, Meter], list[Price]] = {}
        for price in sorted(prices):
            self._rows.setdefault((price.model, price.meter), []).append(price)
        self._timelines: dict[tuple[str, Meter], list[Price]] = {}

    def at(self, model: str, meter: Meter, instant: datetime) -> Price:
        """The one price that holds at an instant: a model's own before that of any model. Raises PriceMissing."""
        timeline = self._timeline(model, meter)
        count = bisect_right(timeline, instant, key=lambda price: price.effective_from)
        if count == 0:
            raise _missing(model, [meter], instant)
        return timeline[count - 1]

    def between(
        self, model: str, meter: Meter, start: datetime, end: datetime
    ) -> Iterator[tuple[datetime, datetime, Price]]:
        """Cut [start, end) where the price changes; the pieces tile it. Raises PriceMissing for a gap."""
        while start < end:
            price = self.at(model, meter, start)
            timeline = self._timeline(model, meter)
            following = timeline.index(price) + 1
            until = timeline[following].effective_from if following < len(timeline) else end
            yield start, min(until, end), price
            start = until

    def _timeline(self, model: str, meter: Meter) -> list[Price]:
        """The prices that apply to a model, each until the next: those of any model up to its first own one."""
        timeline = self._timelines.get((model, meter))
        if timeline is None:
            own = self._rows.get((model, meter), [])
            shared = self._rows.get((ANY_MODEL, meter), []) if model != ANY_MODEL else []
            timeline = [price for price in shared if not own or price.effective_from < own[0].effective_from]
            timeline += own
            self._timelines[model, meter] = timeline
        return timeline


def list_prices(session: Session) -> list[Price]:
    """Every stored price, sorted by model, meter and instant."""
    return sorted(_price(row) for row in rows.list_prices(session))


def load_prices(session: Session) -> Prices:
    return Prices(list_prices(session))


def require_prices(session: Session, model: str, at: datetime) -> None:
    """Raise PriceMissing unless the model has a price in force for every meter.

    Prices in force are never taken back, so what holds at start-up holds for every later request.
    """
    prices = load_prices(session)
    missing = []
    for meter in Meter:
        try:
            prices.at(model, meter, at)
        except PriceMissing:
            missing.append(meter)
    if missing:
        raise _missing(model, missing, at)


def store(session: Session, book: PriceBook, now: datetime) -> None:
    """Make the stored prices those of the book, in the caller's write unit.

    Refuses (PriceBookInvalid) whatever would change a bill already given: a price in force that the book changes or
    drops, and a price added behind the present where another one held. Prices to come may be changed freely.
    """
    wanted = {_key(price): price for price in book.prices}
    stored = {
        _key(price): (row, price) for row, price in ((row, _price(row)) for row in rows.list_prices(session))
    }
    in_force = [price for _, price in stored.values() if price.effective_from <= now]
    for price in in_force:
        if wanted.get(_key(price)) != price:
            raise _history_changed(book, price)
    for key, price in wanted.items():
        if price.effective_from <= now and key not in stored:
            _check_nothing_replaced(book, price, in_force)
    for key, (row, price) in stored.items():
        if wanted.get(key) == price:
            del wanted[key]
        else:
            rows.delete(session, row)
    for price in wanted.values():
        rows.insert(
            session,
            rows.Price(
                model=price.model,
                meter=price.meter,
                nano_usd_per_million=price.nano_usd_per_million,
                effective_from=price.effective_from,
            ),
        )


def _price(row: rows.Price) -> Price:
    return Price(
        model=row.model,
        meter=Meter(row.meter),
        effective_from=row.effective_from,
        nano_usd_per_million=row.nano_usd_per_million,
    )


def _key(price: Price) -> tuple[str, Meter, datetime]:
    return price.model, price.meter, price.effective_from


def _check_nothing_replaced(book: PriceBook, price: Price, in_force: Iterable[Price]) -> None:
    for other in in_force:
        if other.meter == price.meter and other.model in (price.model, ANY_MODEL):
            raise PriceBookInvalid(
                f"Price book {book.source}: the price of {_words(price)} lies behind the present, where that of "
                f"{_words(other)} may have been charged already. Give it an effective_from that is still to come.",
                field="effective_from",
            )


def _history_changed(book: PriceBook, price: Price) -> PriceBookInvalid:
    return PriceBookInvalid(
        f"Price book {book.source}: the price of {_words(price)} is in force at {price.nano_usd_per_million} nano-USD "
        "per million, and the book changes or drops it. Put that row back and add one with a later effective_from "
        "beside it; `headstart billing prices --toml` prints the rows in force.",
        field="nano_usd_per_million",
    )


def _words(price: Price) -> str:
    return f'{price.meter} for model "{price.model}" from {price.effective_from:%Y-%m-%dT%H:%M:%SZ}'


def _missing(model: str, meters: list[Meter], at: datetime) -> PriceMissing:
    return PriceMissing(
        f'Model "{model}" has no price for {", ".join(meters)} at {at:%Y-%m-%dT%H:%M:%SZ}. Add [[price]] rows for it, '
        f'or for model "{ANY_MODEL}", to the price book; 0 is allowed.',
        field="price_book",
    )
