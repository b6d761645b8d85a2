"""A worker with a real engine and a real database, and a test in the place of the API."""

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from caching import leases, lifecycle
from core.ids import new_request_id
from core.messages import BuildCache, DropCache, Event, Generate, TokensEvent
from core.namespaces import Namespaces
from core.sampling import Sampling
from core.secret import RootSecret
from models.cache import Cache, find_cache
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState, find_usage
from prompting.format import PromptFormat
from tests.fakes.clock import ManualClock
from tests.models.rows import add_customer, add_example_prices, open_database
from tests.workers.engine.driving import GREEDY, Driver
from tests.workers.engine.tiny import Oracle
from workers.runtime import Runtime

FINGERPRINT = "aa:bb"
INCARNATION = "inc_test"
_PATIENCE_SECONDS = 60
_UNIT_THREADS = 3


class Workshop:
    """What the API would do and see. Each last event is kept with the state its usage row had at that moment."""

    def __init__(
        self,
        path: Path,
        module: PreTrainedModel,
        oracle: Oracle,
        prompt_format: PromptFormat,
        **config: Any,
    ) -> None:
        self.clock = ManualClock()
        self.database = open_database(path / "data.sqlite3")
        with self.database.write() as session:
            self.customer = add_customer(session, "customer")
            add_example_prices(session)
        self.prompt_format = prompt_format
        self._module = module
        self._oracle = oracle
        self._config = config
        self.events: dict[str, list[Event]] = {}
        self.states_at_end: dict[str, UsageState | None] = {}
        self.sent_twice: set[str] = set()  # channels that may hear more than one last event
        self._heard = threading.Condition()
        self._caches: list[str] = []
        self.start()

    def start(self) -> None:
        """A new engine and a new runtime on the database as it is."""
        self.driver = Driver(self._module, self._oracle, **self._config)
        self.engine = self.driver.engine
        self.runtime = Runtime(
            self.engine,
            self.database,
            self.clock,
            self.prompt_format,
            Namespaces(RootSecret(bytes(32))),
            self._publish,
            threads=_UNIT_THREADS,
            incarnation=INCARNATION,
        )

    def restart(self, **config: Any) -> None:
        """Everything that was in memory is gone."""
        self.runtime.stop()
        self._config |= config
        self.start()

    def close(self) -> None:
        for cache_id in self._caches:
            self.runtime.handle(DropCache(cache_id))
        self.driver.close()
        self.runtime.stop()
        self.database.dispose()

    # What is asked for

    def create(self, token_ids: list[int], *, ttl_seconds: float = 3600) -> str:
        """Write the row of a cache that is yet to be built."""
        now = self.clock.now()
        with self.database.write() as session:
            cache = lifecycle.create(
                session,
                project_id=self.customer.project_id,
                key_id=self.customer.key_id,
                model="tiny",
                fingerprint=FINGERPRINT,
                display_name="",
                messages=[],
                prefix_text="",
                token_ids=token_ids,
                expire_at=now + timedelta(seconds=ttl_seconds),
                incarnation=INCARNATION,
                now=now,
                max_caches=1000,
            )
        self._caches.append(cache.id)
        return cache.id

    def build(self, cache_id: str, fencing_token: int = 1) -> None:
        self.runtime.handle(BuildCache(cache_id, fencing_token))

    def cached(self, token_ids: list[int]) -> str:
        """A cache that is built and ready."""
        cache_id = self.create(token_ids)
        self.build(cache_id)
        self.last(cache_id)
        return cache_id

    def delete(self, cache_id: str, *, tell: bool = True) -> None:
        with self.database.write() as session:
            lifecycle.delete(session, self.clock, self.customer.project_id, cache_id)
        if tell:
            self.runtime.handle(DropCache(cache_id))

    def ask(
        self,
        token_ids: Iterable[int],
        cache_id: str | None = None,
        *,
        max_output_tokens: int = 8,
        sampling: Sampling = GREEDY,
        stop_sequences: tuple[str, ...] = (),
        candidate_count: int = 1,
    ) -> str:
        """Reserve the usage of a request and send it. Returns its id."""
        request_id, ids = new_request_id(), tuple(token_ids)
        cached = 0 if cache_id is None else self.cache(cache_id).token_count
        with self.database.write() as session:
            leases.acquire(
                session,
                self.clock,
                project_id=self.customer.project_id,
                key_id=self.customer.key_id,
                cache_id=cache_id,
                model="tiny",
                fingerprint=FINGERPRINT,
                request_id=request_id,
                prompt_tokens=cached + len(ids),
                cache_tokens=cached,
                most_output_tokens=max_output_tokens * candidate_count,
                incarnation=INCARNATION,
            )
        self.runtime.handle(
            Generate(
                request_id,
                1,
                self.customer.project_id,
                cache_id,
                ids,
                sampling,
                max_output_tokens,
                stop_sequences,
                candidate_count,
            )
        )
        return request_id

    # What came of it

    def last(self, channel_id: str) -> Event:
        """Wait for the event that ends a request or a build."""
        with self._heard:
            assert self._heard.wait_for(lambda: self._has_ended(channel_id), _PATIENCE_SECONDS), (
                "no last event"
            )
            return self.events[channel_id][-1]

    @contextmanager
    def units_standing_still(self) -> Iterator[None]:
        """No database work begins inside."""
        go_on = threading.Event()
        for _ in range(_UNIT_THREADS):
            self.runtime._units.start(lambda: assert_comes(go_on), lambda _: None)
        try:
            yield
        finally:
            go_on.set()

    def wait_for_units(self) -> None:
        """Wait until no database work is open; what it told the engine lies in its inbox then."""
        units = self.runtime._units
        with units._changed:
            assert units._changed.wait_for(lambda: units._open_count == 0, _PATIENCE_SECONDS)

    def token_ids(self, request_id: str, candidate: int = 0) -> list[int]:
        return [
            token_id
            for event in self._tokens(request_id)
            if event.candidate == candidate
            for token_id in event.token_ids
        ]

    def text(self, request_id: str) -> str:
        return "".join(event.text for event in self._tokens(request_id))

    def cache(self, cache_id: str) -> Cache:
        with self.database.read() as session:
            cache = find_cache(session, self.customer.project_id, cache_id)
        assert cache is not None
        return cache

    def usage(self, usage_id: str) -> Usage | None:
        with self.database.read() as session:
            return find_usage(session, usage_id)

    def settled(self, request_id: str) -> tuple[UsageState, int]:
        """How the usage of a request was settled, and for how many output tokens."""
        usage = self.usage(request_id)
        assert usage is not None
        return usage.state, usage.output_tokens

    def storage(self, cache_id: str) -> StorageSegment | None:
        with self.database.read() as session:
            return session.get(StorageSegment, cache_id)

    def expected(self, prompt: list[int], count: int) -> list[int]:
        return self.driver.oracle.greedy(prompt, count)

    def _publish(self, channel_id: str, event: Event) -> None:
        state = None
        if not isinstance(event, TokensEvent):
            usage = self.usage(channel_id)
            state = usage.state if usage is not None else None
        with self._heard:
            heard = self.events.setdefault(channel_id, [])
            if channel_id not in self.sent_twice:
                assert not self._has_ended(channel_id), "an event after the last one"
                assert event.number == len(heard)
            heard.append(event)
            if not isinstance(event, TokensEvent):
                self.states_at_end[channel_id] = state
            self._heard.notify_all()

    def _has_ended(self, channel_id: str) -> bool:
        return channel_id in self.states_at_end

    def _tokens(self, request_id: str) -> list[TokensEvent]:
        return [event for event in self.events.get(request_id, []) if isinstance(event, TokensEvent)]


def assert_comes(event: threading.Event) -> None:
    assert event.wait(_PATIENCE_SECONDS)


def some_tokens(count: int, seed: int) -> list[int]:
    """Ordinary tokens of the built-in model's vocabulary."""
    return random.Random(seed).choices(range(100, 49_000), k=count)
