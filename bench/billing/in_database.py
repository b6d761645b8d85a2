"""A life as it happens in a database, by the units of work of the server and a clock that is set, against the oracle."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from bench.billing.entries import Difference, Figures, compare, compare_totals, correctable, correction_of
from bench.billing.history import Closed, Fact, history, last_instant
from bench.billing.in_memory import instant, rows
from bench.billing.lives import (
    MODEL,
    PROJECT,
    Announce,
    Ask,
    Change,
    Close,
    Correct,
    Create,
    Delete,
    Keep,
    Life,
    Look,
    Move,
    Step,
    Sweep,
)
from bench.billing.names import CACHE, KEY, name_of, request_id
from bench.billing.oracle import Oracle
from bench.database import clear
from bench.set_clock import SetClock
from billing import usage
from billing.bookkeeping import keep_books
from billing.closing import close_month
from billing.corrections import correct, correct_amount
from billing.periods import Period
from billing.price_book import make_book
from billing.prices import store
from billing.report import Query, report
from billing.verify import verify
from caching import leases, lifecycle
from caching.sweeping import sweep
from core.errors import CacheNotFound, InvalidArgument
from models.api_key import ApiKey, insert_api_key
from models.cache import Cache, CacheState, insert_cache
from models.ledger_entry import EntryKind, LedgerEntry, list_entries
from models.placement import Holder, Tier
from models.project import Project
from models.session import Database

FINGERPRINT = "a:b"
EVER = Period(datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))
_MOST = 10**6


def difference(database: Database, life: Life) -> Difference | None:
    """Between what is on record and what the oracle says, at each look and in the end; also whatever verify finds.

    The database is emptied first.
    """
    ours, oracle = Books(database, life), Oracle(life)
    happened = history(life)
    for number, (step, facts) in enumerate(zip(life.steps, happened, strict=False)):
        ours.take(number, step, facts)
        for fact in facts:
            oracle.take(fact)
        if isinstance(step, Look) and ours.owed != oracle.owed:
            return compare_totals(ours.owed, oracle.owed, f"step {number}")
    for fact in happened[-1]:
        oracle.take(fact)
    return ours.find_difference(oracle, last_instant(life))


class Books:
    """The database of one life, and what is done to it."""

    def __init__(self, database: Database, life: Life) -> None:
        self.owed = 0
        self.closed: dict[str, int] = {}
        self._database, self._clock = database, SetClock(instant(0))
        self._tokens = 0  # of the cache, once there is one
        self._newest = 0
        self._known: list[Change] = []
        clear(database)
        with database.write() as session:
            _add_owners(session)
        self._store(life.prices)

    def take(self, number: int, step: Step, facts: Sequence[Fact]) -> None:  # noqa: C901 - one arm a step
        self._clock.at = instant(step.at)
        self._newest = max(self._newest, step.at)
        match step:
            case Create():
                if not self._tokens:
                    self._create(step)
            case Ask():
                self._ask(number, step)
            case Move() | Delete() | Sweep():
                self._change(step)
            case Keep():
                for _ in range(step.times):
                    keep_books(self._database, self._clock)
            case Look():
                self.owed = self._total()
            case Close():
                keep_books(self._database, self._clock)
                self._close([fact.month for fact in facts if isinstance(fact, Closed)])
            case Correct():
                self._correct(step)
            case Announce():
                self._store(step.changes)

    def find_difference(self, oracle: Oracle, end: int) -> Difference | None:
        """Keep the books when all is over, twice, and compare everything that can be."""
        self._clock.at = instant(end)
        keep_books(self._database, self._clock)
        entries = self._entries()
        keep_books(self._database, self._clock)
        if len(self._entries()) != len(entries):
            return Difference(0, "keeping the books again has posted something")
        found = compare(_record(entries), oracle.record)
        if found is None and self.closed != oracle.closed:
            found = Difference(0, f"months were closed at {self.closed}, expected is {oracle.closed}")
        if found is None:
            owed = sum(each.amount for each in oracle.record.values())
            found = compare_totals(self._total(), owed, "the report")
        if found is None:
            with self._database.read() as session:
                faults = [f"{each.check}: {each.what}" for each in verify(session, self._clock.at)]
            found = Difference(0, f"verify finds {faults[0]}") if faults else None
        return found

    def _store(self, changes: Sequence[Change]) -> None:
        """A price book is put in force by an operator, whose clock was not set back: no price lies behind what is posted."""
        self._known += changes
        with self._database.write() as session:
            store(session, make_book("life", rows(self._known)), instant(self._newest))

    def _create(self, step: Create) -> None:
        self._tokens = step.tokens
        with self._database.write() as session:
            insert_cache(session, _pending(step))
            is_active = lifecycle.activate(session, self._clock, CACHE, 1, Holder("inc", Tier.RAM))
            assert is_active

    def _ask(self, number: int, step: Ask) -> None:
        tokens = self._tokens if step.is_named else 0
        try:
            with self._database.write() as session:
                leases.acquire(
                    session,
                    self._clock,
                    project_id=PROJECT,
                    key_id=KEY,
                    cache_id=CACHE if step.is_named else None,
                    model=MODEL,
                    fingerprint=FINGERPRINT,
                    request_id=request_id(number),
                    prompt_tokens=tokens + step.suffix,
                    cache_tokens=tokens,
                    most_output_tokens=10**6,
                    incarnation="inc",
                )
        except CacheNotFound:
            return
        at = instant(step.at + step.takes)
        if step.deliveries == 0:
            with self._database.write() as session:
                assert usage.void(session, request_id(number), 1, at, "FAILED")
        for delivery in range(step.deliveries):
            with self._database.write() as session:
                is_ours = usage.finalise(
                    session,
                    request_id(number),
                    1,
                    step.output,
                    at,
                    "STOP",
                    implicit_cache_tokens=step.implicit,
                )
            assert is_ours == (delivery == 0)

    def _change(self, step: Move | Delete | Sweep) -> None:
        try:
            with self._database.write() as session:
                if isinstance(step, Sweep):
                    sweep(session, self._clock, 10)
                elif isinstance(step, Delete):
                    lifecycle.delete(session, self._clock, PROJECT, CACHE)
                else:
                    seconds = step.ttl / 10**6
                    lifecycle.extend(session, self._clock, PROJECT, CACHE, ttl_seconds=seconds)
        except CacheNotFound:
            pass

    def _close(self, months: Sequence[str]) -> None:
        for month in months:
            with self._database.write() as session:
                self.closed[month] = close_month(session, month, self._clock.at).amount_nano_usd or 0

    def _correct(self, step: Correct) -> None:
        entries = self._entries()
        record = _record(entries)
        name = correctable(record, step.pick)
        if name is None:
            return
        (entry,) = [each for each in entries if each.corrects_id is None and name_of(each.dedupe_key) == name]
        with suppress(InvalidArgument), self._database.write() as session:  # where nothing would change
            if step.is_of_amount:
                amount = entry.amount_nano_usd * step.eighths // 8
                correct_amount(session, entry.id, amount, "why", self._clock.at)
            else:
                correct(session, entry.id, entry.quantity * step.eighths // 8, "why", self._clock.at)

    def _entries(self) -> Sequence[LedgerEntry]:
        with self._database.read() as session:
            return list_entries(session, None, 0, _MOST)

    def _total(self) -> int:
        with self._database.read() as session:
            return report(session, Query(EVER), self._clock.at).total.amount_nano_usd


def _record(entries: Sequence[LedgerEntry]) -> dict[str, Figures]:
    names: dict[int, str] = {}
    record: dict[str, Figures] = {}
    for each in entries:
        if each.corrects_id is None:
            name = name_of(each.dedupe_key)
        else:
            name = correction_of(names[each.corrects_id], record)
        names[each.id] = name
        record[name] = Figures(
            each.meter or "",
            int(each.hour.timestamp()) // 3_600,
            each.kind is EntryKind.CORRECTION,
            each.period,
            each.quantity,
            each.amount_nano_usd,
            each.without_cache_nano_usd,
        )
    return record


def _add_owners(session: Session) -> None:
    """The project that lives, and another, that has prices of its own."""
    since = instant(0) - timedelta(days=1)
    for number, name in enumerate((PROJECT, "other")):
        session.add(Project(id=name, name=name, created_at=since))
        session.flush()
        key = ApiKey(
            id=KEY if name == PROJECT else f"{KEY}_{name}",
            project_id=name,
            name=name,
            secret_mac=bytes([number]) * 32,
            scopes=frozenset(),
            created_at=since,
        )
        insert_api_key(session, key)


def _pending(step: Create) -> Cache:
    at = instant(step.at)
    return Cache(
        id=CACHE,
        project_id=PROJECT,
        key_id=KEY,
        model=MODEL,
        fingerprint=FINGERPRINT,
        state=CacheState.PENDING,
        token_count=step.tokens,
        prefix_text="",
        messages=[],
        token_ids=(),
        incarnation="inc",
        fencing_token=1,
        created_at=at,
        updated_at=at,
        expire_at=at + timedelta(microseconds=step.ttl),
    )
