"""Rows that a bill is made of, put into a real database without the parts that usually write them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import count

from sqlalchemy.orm import Session

from billing import storage, usage
from billing.bookkeeping import keep_books
from billing.meters import Meter
from billing.price import ANY, Price
from billing.price_book import PriceBook, make_book
from billing.prices import store
from billing.verify import verify
from models.api_key import ApiKey
from models.cache import Cache, CacheState
from models.project import Project
from models.session import Database
from tests.fakes.clock import ManualClock

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MODEL = "tiny"
PRICES = {
    Meter.CACHE_WRITE_TOKENS: 100_000_000,
    Meter.CACHE_STORAGE_TOKEN_SECONDS: 1_000_000_000,
    Meter.CACHE_READ_TOKENS: 10_000_000,
    Meter.IMPLICIT_CACHE_READ_TOKENS: 10_000_000,
    Meter.INPUT_TOKENS: 100_000_000,
    Meter.OUTPUT_TOKENS: 400_000_000,
}
NUMBERS = count()


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


LONG_AGO = T0 - timedelta(days=365)


def book(
    prices: Mapping[Meter, int] = PRICES,
    *,
    model: str = MODEL,
    since: datetime = LONG_AGO,
    project_id: str = ANY,
    until: datetime | None = None,
) -> PriceBook:
    """A book with one price for each meter, in force since a year before T0 unless told otherwise."""
    rows = [Price(project_id, model, meter, since, until, amount) for meter, amount in prices.items()]
    return PriceBook("test", tuple(rows))


def joined(*books: PriceBook) -> PriceBook:
    """One book of several; a price without an end ends where the next of its subject begins."""
    return make_book("test", [price for each in books for price in each.prices])


def add_prices(session: Session, *books: PriceBook) -> None:
    store(session, joined(*books), T0)


def add_project(session: Session, name: str) -> str:
    """A project with one key, whose id is its own with a suffix."""
    project = Project(id=f"proj_{name}", name=name, created_at=T0)
    key = ApiKey(
        id=key_of(project.id),
        project_id=project.id,
        name="test",
        secret_mac=next(NUMBERS).to_bytes(32, "big"),
        scopes=frozenset(),
        created_at=T0,
    )
    for row in (project, key):  # the second refers to the first
        session.add(row)
        session.flush()
    return project.id


def key_of(project_id: str) -> str:
    return f"{project_id}_key"


def add_cache(
    session: Session,
    project_id: str,
    cache_id: str,
    *,
    tokens: int = 1000,
    start: datetime = T0,
    end: datetime = T0 + timedelta(hours=1),
    model: str = MODEL,
) -> None:
    """A cache with its segment, but without its write tokens."""
    session.add(
        Cache(
            id=cache_id,
            project_id=project_id,
            key_id=key_of(project_id),
            model=model,
            fingerprint="00:00",
            state=CacheState.ACTIVE,
            token_count=tokens,
            prefix_text="",
            messages=[],
            token_ids=(),
            incarnation="inc",
            fencing_token=1,
            created_at=start,
            updated_at=start,
            activated_at=start,
            # The cache must outlive its creation; a segment may end at the instant it starts.
            expire_at=max(end, start + timedelta(microseconds=1)),
        )
    )
    session.flush()
    storage.open_segment(
        session,
        cache_id=cache_id,
        project_id=project_id,
        key_id=key_of(project_id),
        model=model,
        token_count=tokens,
        started_at=start,
        ends_at=end,
    )


def write(
    session: Session, project_id: str, cache_id: str, *, tokens: int, at: datetime = T0, model: str = MODEL
) -> None:
    usage.record_write(
        session,
        cache_id=cache_id,
        project_id=project_id,
        key_id=key_of(project_id),
        model=model,
        incarnation="inc",
        token_count=tokens,
        at=at,
    )


def reserve(
    session: Session,
    project_id: str,
    request_id: str,
    *,
    prompt: int,
    cached: int = 0,
    cache_id: str | None = None,
    at: datetime = T0,
    model: str = MODEL,
) -> None:
    usage.reserve(
        session,
        request_id=request_id,
        attempt=1,
        project_id=project_id,
        key_id=key_of(project_id),
        cache_id=cache_id,
        model=model,
        incarnation="inc",
        prompt_tokens=prompt,
        cache_read_tokens=cached,
        at=at,
    )


def generate(
    session: Session,
    project_id: str,
    request_id: str,
    *,
    prompt: int,
    output: int,
    cached: int = 0,
    implicit: int = 0,
    cache_id: str | None = None,
    at: datetime = T0,
    model: str = MODEL,
) -> None:
    """A generation that was reserved and finished at one instant; implicit: found by the engine, beyond the cached."""
    reserve(
        session, project_id, request_id, prompt=prompt, cached=cached, cache_id=cache_id, at=at, model=model
    )
    assert usage.finalise(session, request_id, 1, output, at, "STOP", implicit_cache_tokens=implicit)


def bring_up_to_date(database: Database, now: datetime) -> None:
    """Post all that is due at an instant, and roll it up."""
    keep_books(database, ManualClock(now))


def faults(database: Database, now: datetime) -> list[str]:
    """What the reconciliation finds wrong."""
    with database.read() as session:
        return [f"{each.check}: {each.what}" for each in verify(session, now)]
