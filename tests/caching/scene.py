"""One project, one clock, and the steps of a cache's life, each in a unit of work of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from caching import leases, lifecycle
from caching.status import status_of
from models.cache import Cache, CacheState
from models.placement import Holder, Tier
from models.session import Database
from models.storage_segment import find_segments
from tests.fakes.clock import ManualClock
from tests.models.rows import Customer

HOLDER = Holder("inc_1", Tier.RAM)


@dataclass(frozen=True, slots=True)
class Scene:
    database: Database
    clock: ManualClock
    customer: Customer

    def create(
        self,
        *,
        customer: Customer | None = None,
        ttl_seconds: float = 3600,
        token_ids: Sequence[int] = range(100),
        fingerprint: str = "aa:bb",
        incarnation: str = "inc_1",
        max_caches: int = 1000,
        max_cached_tokens: int | None = None,
    ) -> Cache:
        owner = customer or self.customer
        with self.database.write() as session:
            now = self.clock.now()
            return lifecycle.create(
                session,
                project_id=owner.project_id,
                key_id=owner.key_id,
                model="tiny",
                fingerprint=fingerprint,
                display_name="handbook",
                messages=[{"role": "user", "text": "a customer's words"}],
                prefix_text="<user>a customer's words",
                token_ids=token_ids,
                expire_at=self.after(ttl_seconds),
                incarnation=incarnation,
                now=now,
                max_caches=max_caches,
                max_cached_tokens=max_cached_tokens,
            )

    def activate(self, cache: Cache, fencing_token: int = 1) -> bool:
        with self.database.write() as session:
            return lifecycle.activate(session, self.clock, cache.id, fencing_token, HOLDER)

    def active(self, **changes: object) -> Cache:
        cache = self.create(**changes)  # type: ignore[arg-type]
        assert self.activate(cache)
        return cache

    def status(self, *caches: Cache) -> list[tuple[Tier | None, int]]:
        with self.database.read() as session:
            return [(each.tier, each.hit_count) for each in status_of(session, caches, self.clock.now())]

    def fail(self, cache: Cache, reason: str = "cancelled") -> bool:
        with self.database.write() as session:
            return lifecycle.fail(session, self.clock, cache.id, reason)

    def get(self, cache: Cache, customer: Customer | None = None) -> Cache:
        owner = customer or self.customer
        with self.database.read() as session:
            return lifecycle.get(session, owner.project_id, cache.id, self.clock.now())

    def get_with_content(self, cache: Cache) -> Cache:
        with self.database.read() as session:
            return lifecycle.get_with_content(session, self.customer.project_id, cache.id, self.clock.now())

    def extend(
        self, cache: Cache, *, expire_at: datetime | None = None, ttl_seconds: float | None = None
    ) -> Cache:
        with self.database.write() as session:
            return lifecycle.extend(
                session,
                self.clock,
                self.customer.project_id,
                cache.id,
                expire_at=expire_at,
                ttl_seconds=ttl_seconds,
            )

    def delete(self, cache: Cache) -> None:
        with self.database.write() as session:
            lifecycle.delete(session, self.clock, self.customer.project_id, cache.id)

    def acquire(
        self,
        cache: Cache | None,
        request_id: str = "gen_1",
        *,
        fingerprint: str = "aa:bb",
        most_output_tokens: int = 10,
    ) -> None:
        cached = 0 if cache is None else 100
        with self.database.write() as session:
            leases.acquire(
                session,
                self.clock,
                project_id=self.customer.project_id,
                key_id=self.customer.key_id,
                cache_id=None if cache is None else cache.id,
                model="renamed",
                fingerprint=fingerprint,
                request_id=request_id,
                prompt_tokens=cached + 7,
                cache_tokens=cached,
                most_output_tokens=most_output_tokens,
                incarnation="inc_1",
            )

    def after(self, seconds: float) -> datetime:
        """The clock's time, so much later; the clock stays."""
        later = self.clock.advance(seconds)
        self.clock.advance(-seconds)
        return later

    def row(self, cache: Cache) -> Cache:
        """The row as it is stored now, whoever may see it."""
        with self.database.read() as session:
            found = session.get(Cache, cache.id)
            assert found is not None
            return found

    def state(self, cache: Cache) -> CacheState:
        return self.row(cache).state

    def content(self, cache: Cache) -> tuple[object, ...]:
        with self.database.read() as session:
            query = text("SELECT prefix_text, messages, token_ids FROM caches WHERE id = :id")
            return tuple(session.execute(query, {"id": cache.id}).one())

    def count(self, table: str) -> int:
        with self.database.read() as session:
            return int(session.scalars(text(f"SELECT count(*) FROM {table}")).one())

    def segment(self, cache: Cache) -> tuple[datetime, datetime]:
        with self.database.read() as session:
            (found,) = find_segments(session, [cache.id])
            return found.started_at, found.ends_at
