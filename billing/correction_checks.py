"""Corrections a second time: what a charge comes to after each of them, in exact fractions. It finds, and changes nothing.

It shares no arithmetic with what corrects.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from math import floor
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from billing.meters import CREATE_METERS, READ_METERS, Meter
from billing.recompute import price_at
from models.ledger_entry import EntryKind, LedgerEntry
from models.price import Price
from models.usage import Usage

_SAME = ("project_id", "debit", "credit", "meter", "price_id", "key_id", "cache_id", "model", "hour")


class Rates(NamedTuple):
    """What one unit of a meter costs in nano-USD, and what it would without a cache."""

    own: Fraction
    without_cache: Fraction


def corrections_are_exact(session: Session) -> Iterator[str]:
    """A correction is about what it corrects. With one of its quantity, a charge comes to what its price says for that; with
    one of its amount alone, to what somebody says who tells why. Never to less than nothing.
    """
    charge = aliased(LedgerEntry)
    query = (
        select(charge, LedgerEntry)
        .join(LedgerEntry, LedgerEntry.corrects_id == charge.id)
        .where(LedgerEntry.corrects_id.is_not(None), LedgerEntry.kind == EntryKind.CORRECTION)
        .order_by(charge.id, LedgerEntry.id)
    )
    prices = {price.id: price for price in session.scalars(select(Price))}
    for corrected, pairs in groupby(session.execute(query), lambda row: row[0]):
        corrections = [row[1] for row in pairs]
        try:
            rates = _rates(session, corrected, prices)
        except LookupError as error:
            yield f"ledger entry {corrected.id}: its corrections cannot be priced: {error}"
            continue
        for correction, what in find_wrong(corrected, corrections, rates):
            yield f"ledger entry {correction.id}, which corrects {corrected.id}: {what}"


def find_wrong(
    charge: LedgerEntry, corrections: Sequence[LedgerEntry], rates: Rates
) -> Iterator[tuple[LedgerEntry, str]]:
    """Each correction of a charge that is wrong, with what is wrong with it; in the order in which they were made."""
    quantity, amount, without_cache = charge.quantity, charge.amount_nano_usd, charge.without_cache_nano_usd
    for each in corrections:
        before = without_cache
        quantity += each.quantity
        amount += each.amount_nano_usd
        without_cache += each.without_cache_nano_usd
        if min(quantity, amount, without_cache) < 0:
            yield each, "it leaves less than nothing"
        if any(getattr(each, name) != getattr(charge, name) for name in _SAME):
            yield each, "it is about something else"
        if each.quantity == 0:
            if not (each.note or "").strip():
                yield each, "it changes the amount alone, and does not say why"
            wanted = (amount, _without_cache(charge, amount, before)) if quantity else (0, 0)
        elif quantity == charge.quantity:  # an hour of storage can be a nano more than its own floor
            wanted = charge.amount_nano_usd, charge.without_cache_nano_usd
        else:
            wanted = floor(rates.own * quantity), floor(rates.without_cache * quantity)
        if (amount, without_cache) != wanted:
            yield (
                each,
                (
                    f"{quantity} then cost {amount} nano-USD and {without_cache} without a cache; "
                    f"it should be {wanted[0]} and {wanted[1]}"
                ),
            )


def _without_cache(charge: LedgerEntry, amount: int, before: int) -> int:
    """What a charge whose amount alone is another would have cost: what was read has the price of input, which stays."""
    if charge.meter in READ_METERS:
        return before
    return 0 if charge.meter in CREATE_METERS else amount


def _rates(session: Session, charge: LedgerEntry, prices: dict[int, Price]) -> Rates:
    """Raises LookupError where there is no price, or nobody on record who read."""
    units = 3_600 * 10**6 if charge.meter == Meter.CACHE_STORAGE_TOKEN_SECONDS else 10**6
    price = prices.get(charge.price_id or 0)
    if price is None:
        raise LookupError(f"there is no price {charge.price_id}")
    own = Fraction(price.nano_usd_per_million, units)
    if charge.meter in CREATE_METERS:
        return Rates(own, Fraction(0))
    if charge.meter not in READ_METERS:
        return Rates(own, own)
    request = session.get(Usage, charge.dedupe_key.rpartition(":")[0])
    if request is None:
        raise LookupError(f"there is no usage row of {charge.dedupe_key}")
    computed = price_at(list(prices.values()), request, Meter.INPUT_TOKENS, request.created_at)
    return Rates(own, Fraction(computed.nano_usd_per_million, 10**6))
