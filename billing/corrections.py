"""Corrections: an operator's word that an entry should have been another. The entry stays; the difference is appended."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from billing.capture import capture_correction
from billing.differences import Figures, add_up, at_amount, at_quantity
from billing.ledger import Periods
from billing.meters import READ_METERS, Meter
from billing.prices import prices_at
from billing.rating import Rates
from billing.terms import lock_terms
from core.errors import EntryNotFound, InvalidArgument
from core.texts import LONGEST_NOTE, check_text
from models.ledger_entry import EntryKind, LedgerEntry, append, list_corrections, lock_entry, new_entry
from models.price import get_price
from models.usage import find_usage

# A million USD, or as many units: thousands of charges that are corrected to it still sum to an integer of the database.
MOST = 10**15


@dataclass(frozen=True, slots=True)
class _Charge:
    """A charge on record, and what it comes to with its corrections. Nobody else corrects it until the unit ends."""

    entry: LedgerEntry
    meter: Meter
    corrections: list[LedgerEntry]

    @property
    def stands(self) -> Figures:
        return add_up(map(_figures, [self.entry, *self.corrections]))


def correct(session: Session, entry_id: int, quantity: int, note: str, now: datetime) -> LedgerEntry:
    """Let an entry come to another quantity, at its price, in the caller's write unit; gives the row of the difference.

    quantity: what is to be charged in all, from 0 on. It costs what the price says, whatever was corrected before. It is billed
    in the open month, for the hour in which the entry occurred. Raises EntryNotFound, InvalidArgument where nothing would
    change.
    """
    _check("quantity", quantity)
    charge = _charge(session, entry_id)
    rates = _rates(session, charge)
    wanted = at_quantity(charge.meter, _figures(charge.entry), quantity, rates)
    if max(wanted) > MOST:
        raise InvalidArgument(
            f"quantity {quantity} would come to {max(wanted)} nano-USD; a charge comes to {MOST} at most.",
            field="quantity",
        )
    return _append(session, charge, wanted, "quantity", note, now)


def correct_amount(
    session: Session, entry_id: int, amount_nano_usd: int, note: str, now: datetime
) -> LedgerEntry:
    """Let an entry come to another amount, for its price was wrong; its quantity stays. Otherwise as `correct`.

    amount_nano_usd: what is to be charged in all, from 0 on. A quantity that is corrected later costs what the price says.
    """
    _check("amount_nano_usd", amount_nano_usd)
    charge = _charge(session, entry_id)
    if charge.stands.quantity == 0 and amount_nano_usd > 0:
        raise InvalidArgument(
            f"Entry {entry_id} comes to a quantity of 0, which costs nothing. Correct its quantity.",
            field="amount_nano_usd",
        )
    wanted = at_amount(charge.meter, charge.stands, amount_nano_usd)
    return _append(session, charge, wanted, "amount_nano_usd", note, now)


def _check(field: str, value: int) -> None:
    if not 0 <= value <= MOST:
        raise InvalidArgument(
            f"{field} must be from 0, which takes the whole charge back, to {MOST}, not {value}.", field=field
        )


def _charge(session: Session, entry_id: int) -> _Charge:
    entry = lock_entry(session, entry_id)
    if entry is None or entry.meter is None or entry.corrects_id is not None:
        raise EntryNotFound(
            f"There is no charge {entry_id} that could be corrected; `headstart billing entries` lists them.",
            field="entry",
        )
    return _Charge(entry, Meter(entry.meter), list(list_corrections(session, entry_id)))


def _figures(entry: LedgerEntry) -> Figures:
    return Figures(entry.quantity, entry.amount_nano_usd, entry.without_cache_nano_usd)


def _rates(session: Session, charge: _Charge) -> Rates:
    """The price that the charge had, and that of input when its request was accepted."""
    entry, meter = charge.entry, charge.meter
    assert entry.price_id is not None
    assert entry.model is not None
    computed = own = get_price(session, entry.price_id).nano_usd_per_million
    if meter in READ_METERS:
        request = find_usage(session, entry.dedupe_key.removesuffix(f":{meter}"))
        assert request is not None, "who reads is on record"
        prices = prices_at(session, entry.project_id, entry.model, request.created_at)
        input_ = prices.at(entry.project_id, entry.model, Meter.INPUT_TOKENS, request.created_at)
        computed = input_.nano_usd_per_million
    return Rates.of(meter, own, computed)


def _append(
    session: Session, charge: _Charge, wanted: Figures, field: str, note: str, now: datetime
) -> LedgerEntry:
    """Append what lets a charge come to what is wanted."""
    check_text("note", note, "say why", LONGEST_NOTE)
    entry, difference = charge.entry, wanted.less(charge.stands)
    if not any(difference):
        raise InvalidArgument(f"Entry {entry.id} comes to {getattr(wanted, field)} already.", field=field)
    terms = lock_terms(session, entry.project_id)
    facts = new_entry(
        project_id=entry.project_id,
        dedupe_key=f"correction:{entry.id}:{len(charge.corrections) + 1}",
        kind=EntryKind.CORRECTION,
        debit=entry.debit,
        credit=entry.credit,
        meter=entry.meter,
        price_id=entry.price_id,
        corrects_id=entry.id,
        key_id=entry.key_id,
        cache_id=entry.cache_id,
        model=entry.model,
        hour=entry.hour,
        period=Periods(session, now).present(),
        posted_at=now,
        note=note,
    )
    made = append(session, LedgerEntry(**(facts | difference._asdict())))
    if terms is not None:
        capture_correction(session, terms, made, [entry, *charge.corrections], now)
    return made
