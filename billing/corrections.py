"""Corrections: an operator's word that an entry should have been another. The entry stays; the difference is appended."""

from datetime import datetime

from sqlalchemy.orm import Session

from billing.capture import capture_correction
from billing.ledger import Periods
from billing.rating import part_of
from billing.terms import lock_terms
from core.errors import EntryNotFound, InvalidArgument
from models.ledger_entry import EntryKind, LedgerEntry, append, list_corrections, lock_entry


def correct(session: Session, entry_id: int, quantity: int, note: str, now: datetime) -> LedgerEntry:
    """Let an entry come to another quantity, at its price, in the caller's write unit; gives the row of the difference.

    quantity: what is to be charged in all, from 0 on. Its amounts follow in proportion, rounded down. It is billed in the
    open month, for the hour in which the entry occurred. Raises EntryNotFound, InvalidArgument where nothing would change.
    """
    entry = lock_entry(session, entry_id)
    if entry is None or entry.meter is None or entry.corrects_id is not None:
        raise EntryNotFound(
            f"There is no charge {entry_id} that could be corrected; `headstart billing entries` lists them.",
            field="entry",
        )
    if quantity < 0:
        raise InvalidArgument("quantity cannot be negative; 0 takes the whole charge back.", field="quantity")
    if not note.strip():
        raise InvalidArgument("note must say why.", field="note")
    corrections = list_corrections(session, entry_id)
    so_far = entry.quantity + sum(each.quantity for each in corrections)
    if quantity == so_far:
        raise InvalidArgument(f"Entry {entry_id} comes to {quantity} already.", field="quantity")

    def difference(name: str) -> int:
        wanted = part_of(getattr(entry, name), quantity, entry.quantity)
        charged: int = getattr(entry, name) + sum(getattr(each, name) for each in corrections)
        return wanted - charged

    terms = lock_terms(session, entry.project_id)
    made = append(
        session,
        LedgerEntry(
            project_id=entry.project_id,
            dedupe_key=f"correction:{entry.id}:{len(corrections) + 1}",
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
            quantity=quantity - so_far,
            amount_nano_usd=difference("amount_nano_usd"),
            without_cache_nano_usd=difference("without_cache_nano_usd"),
            posted_at=now,
            note=note,
        ),
    )
    if terms is not None:
        capture_correction(session, terms, made, [entry, *corrections], now)
    return made
