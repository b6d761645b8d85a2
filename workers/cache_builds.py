"""Builds and rebuilds of caches: from the token ids in the database to a pinned segment in the engine.

No transaction is open while the engine computes. A build is activated, and billed, only under its fencing token; a rebuild
posts nothing.
"""

import logging
import threading
from collections.abc import Callable
from itertools import count

from caching import lifecycle
from core.clock import Clock, instant
from core.errors import AppError, CacheNotFound, Cancelled, DeadlineExceeded, Unavailable
from core.ids import cache_name
from core.messages import BuildCache, BuiltEvent, FailedEvent, LastEvent
from core.namespaces import Namespaces
from models.cache import find_prefix, list_caches_to_rebuild
from models.placement import Holder, Tier
from models.session import Database
from workers.engine.engine import Engine
from workers.engine.sequence import Build, Ending
from workers.units import Units

log = logging.getLogger(__name__)
Publish = Callable[[str, LastEvent], None]


class CacheBuilds:
    def __init__(
        self,
        engine: Engine,
        database: Database,
        clock: Clock,
        namespaces: Namespaces,
        units: Units,
        publish: Publish,
        incarnation: str,
    ) -> None:
        self._holder = Holder(incarnation, Tier.GPU if engine.config.device.type == "cuda" else Tier.RAM)
        self._engine = engine
        self._database = database
        self._clock = clock
        self._namespaces = namespaces
        self._units = units
        self._publish = publish
        self._lock = threading.Lock()
        self._starting: dict[str, bool] = {}  # builds not with the engine so far: whether they were cancelled

    def announce(self, cache_id: str) -> None:
        """A build is about to start: from now on it can be cancelled."""
        with self._lock:
            self._starting[cache_id] = False

    def cancel(self, cache_id: str) -> None:
        """Stop a build before the engine has it, or at its next chunk. Unknown ids are ignored."""
        with self._lock:
            if cache_id in self._starting:
                self._starting[cache_id] = True
        self._engine.cancel(cache_id)

    def build(self, message: BuildCache) -> None:
        """Compute a new cache, activate it and tell its channel. Called on a unit's thread."""
        prefix = self._find_prefix(message.cache_id)
        if prefix is None:
            self.fail(message, _ended_before())
            return

        def on_end(ending: Ending, error: AppError | None) -> None:
            tries = count(1)
            self._units.settle(
                lambda: self._end_build(message, ending, error, is_retry=next(tries) > 1),
                lambda e: self.fail(message, e),
            )

        with self._lock:
            is_cancelled = self._starting.pop(message.cache_id, False)
            if not is_cancelled:
                self._engine.build(Build(message.cache_id, *prefix, [on_end]))
        if is_cancelled:
            self.fail(message, Cancelled("The build was cancelled."))

    def fail(self, message: BuildCache, error: AppError) -> None:
        """A build that came to nothing: end the row unbilled, give its memory back, tell whoever waits."""
        with self._lock:
            self._starting.pop(message.cache_id, None)
        self._engine.drop(message.cache_id)

        def end_row() -> None:
            with self._database.write() as session:
                is_ours = lifecycle.fail(session, self._clock, message.cache_id, error.code)
            self._publish(message.cache_id, FailedEvent(0, error if is_ours else _ended_before()))

        self._units.settle(end_row, lambda failure: self._publish(message.cache_id, FailedEvent(0, failure)))

    def rebuild(self, cache_id: str, *, is_urgent: bool, on_error: Callable[[AppError], None]) -> None:
        """Compute the KV of a usable cache again, unbilled. on_error is called before any follower learns of it."""
        prefix = self._find_prefix(cache_id)
        if prefix is None:
            on_error(
                CacheNotFound(f"There is no cached content {cache_name(cache_id)}.", field="cached_content")
            )
            return

        def on_end(ending: Ending, error: AppError | None) -> None:
            if ending == Ending.BUILT:
                extra = {"cache_id": cache_id, "tokens": len(prefix[1])}
                log.info("rebuilt" if build.forwarded else "found", extra=extra)
                self._units.settle(
                    lambda: self._end_rebuild(cache_id), lambda failure: self._give_up(cache_id, failure)
                )
            elif error is not None:
                log.warning("rebuild failed: %s", error, extra={"cache_id": cache_id})
                on_error(error)

        build = Build(cache_id, *prefix, [on_end], is_rebuild=True, is_urgent=is_urgent)
        self._engine.build(build)

    def rebuild_all(self, fingerprint: str) -> int:
        """Queue a rebuild of every usable cache of the served model, oldest first. Returns how many."""
        with self._database.read() as session:
            caches = list_caches_to_rebuild(session, fingerprint, instant(session, self._clock))
            ids = [cache.id for cache in caches]
        for cache_id in ids:
            self.rebuild(cache_id, is_urgent=False, on_error=lambda _: None)
        return len(ids)

    def _end_build(
        self, message: BuildCache, ending: Ending, error: AppError | None, *, is_retry: bool
    ) -> None:
        if ending != Ending.BUILT:
            self.fail(message, error or _stopping())
            return
        with self._database.write() as session:
            claim = message.cache_id, message.fencing_token
            is_active = lifecycle.activate(session, self._clock, *claim, self._holder)
            is_active = is_active or (is_retry and lifecycle.was_activated(session, *claim))
        if is_active:
            self._publish(message.cache_id, BuiltEvent(0))
        else:
            self._drop_if_ended(message.cache_id)
            self._publish(message.cache_id, FailedEvent(0, _ended_before()))

    def _end_rebuild(self, cache_id: str) -> None:
        """A cache may have ended meanwhile, and its DropCache have come before the segment was there to drop."""
        with self._database.write() as session:
            is_live = lifecycle.rebuilt(session, cache_id, self._holder)
        if not is_live:
            self._engine.drop(cache_id)

    def _give_up(self, cache_id: str, error: AppError) -> None:
        """It is not known whether the cache still lives: its KV is given back, and made again for who asks."""
        log.error("a rebuild of %s could not be recorded: %s", cache_name(cache_id), error)
        self._engine.drop(cache_id)

    def _drop_if_ended(self, cache_id: str) -> None:
        """A cache may end while it is built, and its DropCache come before the segment is there to drop."""
        if self._find_prefix(cache_id) is None:
            self._engine.drop(cache_id)

    def _find_prefix(self, cache_id: str) -> tuple[bytes, tuple[int, ...]] | None:
        """Whose KV it may share, and its tokens; None once the cache has ended."""
        with self._database.read() as session:
            found = find_prefix(session, cache_id)
        return None if found is None else (self._namespaces.of(found.project_id), found.token_ids)


def _ended_before() -> DeadlineExceeded:
    """Its expiry has passed; or its own caller gave it up, who does not read this."""
    return DeadlineExceeded("The cached content expired before it was built. Give it a longer ttl.")


def _stopping() -> Unavailable:
    """The one reason left why a build ends early: whoever else stops one has ended the row before."""
    return Unavailable("The server is stopping; nothing was done. Send it again.", retry_after_seconds=1)
