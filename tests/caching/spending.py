"""A scene with prices that are easy to add up, and a project whose spending is limited."""

from dataclasses import dataclass
from datetime import datetime

from billing import limits, usage
from billing.bookkeeping import keep_books
from billing.limits import LimitStatus, set_limit
from billing.meters import Meter
from billing.price import ANY
from billing.prices import store
from models.hold import Hold, list_holds
from models.ledger_entry import LedgerEntry, list_entries
from models.session import Database
from tests.billing.rows import book, faults
from tests.caching.scene import Scene
from tests.fakes.clock import START, ManualClock
from tests.models.rows import Customer, add_customer

# Nano-USD: 1,000 a token that is written or computed, 100 one that is read, 4,000 one that is put out; 1 a token and second.
PRICES = {
    Meter.CACHE_WRITE_TOKENS: 1_000_000_000,
    Meter.CACHE_STORAGE_TOKEN_SECONDS: 3_600_000_000,
    Meter.CACHE_READ_TOKENS: 100_000_000,
    Meter.IMPLICIT_CACHE_READ_TOKENS: 100_000_000,
    Meter.INPUT_TOKENS: 1_000_000_000,
    Meter.OUTPUT_TOKENS: 4_000_000_000,
}
WRITE = 100 * 1_000  # of the scene's cache, which has 100 tokens
A_SECOND = 100
REQUEST = 7 * 1_000 + 10 * 4_000  # at most, without a cache; with one:
HIT = 100 * 100 + REQUEST
MONTH = "2026-05"


def hours(count: float) -> int:
    """What keeping the scene's cache for so many hours costs."""
    return round(count * 3600) * A_SECOND


@dataclass(frozen=True, slots=True)
class Spending(Scene):
    """One project whose limits and counters can be asked for; each step is a unit of its own."""

    def limit(
        self, hard: int | None = None, soft: int | None = None, key_id: str | None = None
    ) -> LimitStatus:
        with self.database.write() as session:
            return set_limit(
                session,
                self.customer.project_id,
                key_id,
                hard_nano_usd=hard,
                soft_nano_usd=soft,
                now=self.clock.now(),
            )

    def used(self, key_id: str = "", at: datetime | None = None) -> tuple[int, int]:
        """What is spent, and what is held, of the limit in the month."""
        with self.database.read() as session:
            found = limits.list_status(session, self.customer.project_id, at or self.clock.now())
        (status,) = (each for each in found if each.limit.key_id == key_id)
        return status.spent_nano_usd, status.held_nano_usd

    def holds(self) -> dict[str, int]:
        with self.database.read() as session:
            return {each.id: each.amount_nano_usd for each in list_holds(session, self.customer.project_id)}

    def hold(self, hold_id: str) -> Hold | None:
        with self.database.read() as session:
            return session.get(Hold, hold_id)

    def finish(self, request_id: str = "gen_1", output: int = 3, implicit: int = 0) -> bool:
        with self.database.write() as session:
            return usage.finalise(
                session, request_id, 1, output, self.clock.now(), "STOP", implicit_cache_tokens=implicit
            )

    def void(self, request_id: str = "gen_1") -> bool:
        with self.database.write() as session:
            return usage.void(session, request_id, 1, self.clock.now(), "FAILED")

    def keep_books(self) -> None:
        keep_books(self.database, self.clock)

    def entries(self) -> list[LedgerEntry]:
        with self.database.read() as session:
            return list(list_entries(session, self.customer.project_id, 0, 10_000))

    def faults(self) -> list[str]:
        return faults(self.database, self.clock.now())


def make_spending(database: Database, now: datetime = START) -> Spending:
    with database.write() as session:
        customer: Customer = add_customer(session, "one")
        store(session, book(PRICES, model=ANY), now)
    return Spending(database, ManualClock(now), customer)
