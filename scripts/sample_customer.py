"""A customer of the sample month: each step is what a server does for one, when the customer's clock says so."""

from datetime import datetime, timedelta
from random import Random
from unittest.mock import patch

from sqlalchemy.orm import Session

from billing import usage
from billing.corrections import correct
from billing.meters import Meter
from billing.price_book import PriceBook
from billing.prices import store
from caching import leases, lifecycle
from core import ids
from models.api_key import ApiKey, Scope, insert_api_key
from models.cache import Cache
from models.ledger_entry import find_entries
from models.placement import Holder, Tier
from models.project import Project, create_project
from models.session import Database

_MODEL, _FINGERPRINT, _INCARNATION = "qwen3-32b", "sample:sample", "inc_sample"


class SetClock:
    """Shows what it was last set to."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def now_in(self, session: Session) -> datetime:  # noqa: ARG002 - the database is not asked
        return self.at


class Customer:
    """A project with one key, and the caches that it has by now, by their names."""

    def __init__(self, database: Database, book: PriceBook, since: datetime) -> None:
        self.database = database
        self.clock = SetClock(since)
        self.dice = Random(20261001)  # noqa: S311 - to fall the same again is the point
        self.caches: dict[str, Cache] = {}
        self.astray = ""  # the request whose answer ran on
        with patch.object(ids, "secrets", self.dice), database.write() as session:
            store(session, book, since)
            self.project: Project = create_project(session, "Lindqvist Machines", since)
            self.key_id = ids.new_key_id()
            insert_api_key(session, _key(self.project.id, self.key_id, since))

    def create(self, name: str, token_count: int, ttl: timedelta) -> None:
        now = self.clock.now()
        with patch.object(ids, "secrets", self.dice), self.database.write() as session:
            cache = lifecycle.create(
                session,
                project_id=self.project.id,
                key_id=self.key_id,
                model=_MODEL,
                fingerprint=_FINGERPRINT,
                display_name=name,
                messages=[{"role": "user", "text": name}],
                prefix_text=name,
                token_ids=range(token_count),
                expire_at=now + ttl,
                incarnation=_INCARNATION,
                now=now,
                max_caches=10,
            )
            self.clock.at += timedelta(
                seconds=token_count // 9_000
            )  # the build takes a while, and is not billed
            lifecycle.activate(
                session, self.clock, cache.id, cache.fencing_token, Holder(_INCARNATION, Tier.GPU)
            )
        self.caches[name] = cache

    def extend(self, name: str, ttl: timedelta) -> None:
        with self.database.write() as session:
            lifecycle.extend(
                session, self.clock, self.project.id, self.caches[name].id, ttl_seconds=ttl.total_seconds()
            )

    def delete(self, name: str) -> None:
        with self.database.write() as session:
            lifecycle.delete(session, self.clock, self.project.id, self.caches.pop(name).id)

    def ask(self, session: Session, at: datetime, name: str | None, output: int | None = None) -> str:
        """Send a request that takes some seconds; one of three goes on where an earlier one ended: an implicit hit."""
        cache = None if name is None else self.caches[name]
        cached = 0 if cache is None else cache.token_count
        own = self.dice.randint(2_400, 5_200) if cache is None else self.dice.randint(150, 2_900)
        implicit = 64 * self.dice.randint(0, own // 64) if self.dice.randint(1, 3) == 1 else 0  # whole blocks
        request_id = f"gen_{at:%d%H%M%S}{self.dice.getrandbits(32):08x}"
        self.clock.at = at
        leases.acquire(
            session,
            self.clock,
            project_id=self.project.id,
            key_id=self.key_id,
            cache_id=None if cache is None else cache.id,
            model=_MODEL,
            fingerprint=_FINGERPRINT,
            request_id=request_id,
            prompt_tokens=cached + own,
            cache_tokens=cached,
            most_output_tokens=2_000,
            incarnation=_INCARNATION,
        )
        self.clock.at += timedelta(seconds=self.dice.randint(2, 14))
        tokens = self.dice.randint(150, 1_300) if output is None else output
        usage.finalise(
            session, request_id, 1, tokens, self.clock.now(), "STOP", implicit_cache_tokens=implicit
        )
        return request_id

    def take_back(self, request_id: str, meter: Meter, quantity: int, note: str) -> None:
        """Let somebody correct one of a request's charges."""
        with self.database.write() as session:
            (entry,) = find_entries(session, self.project.id, [f"{request_id}:{meter}"])
            correct(session, entry.id, quantity, note, self.clock.now())


def _key(project_id: str, key_id: str, since: datetime) -> ApiKey:
    return ApiKey(
        id=key_id,
        project_id=project_id,
        name="application",
        secret_mac=bytes(32),
        scopes=frozenset({Scope.CACHES, Scope.GENERATE}),
        created_at=since,
    )
