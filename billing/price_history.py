"""What of the stored prices a price book must leave as it is, because something may have been charged at it."""

from collections.abc import Iterable
from datetime import datetime

from billing.price import ANY, Price, in_words
from core.errors import PriceBookInvalid


def check_history(source: str, stored: Iterable[Price], wanted: Iterable[Price], until: datetime) -> None:
    """Raise PriceBookInvalid where a book would change what held up to `until`, that instant included.

    That is a price which had begun and is changed or dropped, an end that had passed and moves, and a price that is added where
    another one held and would go before it.
    """
    begun = [price for price in stored if price.effective_from <= until]
    new = {price.key: price for price in wanted}
    for price in begun:
        _check_kept(source, price, new.pop(price.key, None), until)
    for price in new.values():
        if price.effective_from <= until:
            _check_nothing_replaced(source, price, begun)


def _check_kept(source: str, held: Price, wanted: Price | None, until: datetime) -> None:
    if wanted is None or wanted.nano_usd_per_million != held.nano_usd_per_million:
        raise _history_changed(source, held, "changes or drops it")
    has_ended = held.effective_to is not None and held.effective_to <= until
    would_have_ended = wanted.effective_to is not None and wanted.effective_to <= until
    if held.effective_to != wanted.effective_to and (has_ended or would_have_ended):
        raise _history_changed(source, held, "lets it end at another instant than it did, or in the past")


def _check_nothing_replaced(source: str, price: Price, begun: Iterable[Price]) -> None:
    for other in begun:
        # Both have begun, so where they meet they met in the past.
        if _goes_before(price, other) and other.overlaps(price.effective_from, price.effective_to):
            raise PriceBookInvalid(
                f"Price book {source}: the price of {in_words(price)} lies behind the present, or no minute ahead of it, where "
                f"that of {in_words(other)} may have been charged already. Give it an effective_from that is still to come.",
                field="effective_from",
            )


def _goes_before(price: Price, other: Price) -> bool:
    """Whether one price would apply in place of another, to any project and model: the rule of `timelines`."""
    return (
        price.meter == other.meter
        and _meet(price.project_id, other.project_id)
        and _meet(price.model, other.model)
        and _rank(price) >= _rank(other)
    )


def _meet(one: str, other: str) -> bool:
    return one == other or ANY in (one, other)


def _rank(price: Price) -> tuple[bool, bool]:
    return price.project_id != ANY, price.model != ANY


def _history_changed(source: str, price: Price, how: str) -> PriceBookInvalid:
    return PriceBookInvalid(
        f"Price book {source}: the price of {in_words(price)} is in force, or will be within a minute, at "
        f"{price.nano_usd_per_million} nano-USD per million, and the book {how}. Put that row back and add one with a later "
        "effective_from beside it; `headstart billing prices show --toml` prints the rows in force.",
        field="nano_usd_per_million",
    )
