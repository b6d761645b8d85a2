"""Removes what expired caches leave behind, every few seconds. Neither expiry nor any bill waits for it."""

import logging
import threading
from collections.abc import Callable

from caching.sweeping import sweep
from core.clock import Clock
from core.errors import Unavailable
from core.messages import DropCache, Message
from models.session import Database

log = logging.getLogger(__name__)
_BATCH = 1000


class Sweeper:
    def __init__(
        self, database: Database, clock: Clock, handle: Callable[[Message], None], interval_seconds: float
    ) -> None:
        self._database = database
        self._clock = clock
        self._handle = handle
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def sweep_once(self) -> int:
        """End what has expired, give its memory back, and wipe from disk what ended since the last turn.

        Returns how many caches expired. A reader in the way only puts the wiping off to the next turn.
        """
        ended: list[str] = []
        try:
            with self._database.write() as session:
                ended = sweep(session, self._clock, _BATCH)
        finally:
            # Also where it is not known whether that was committed: expired they are, and no later turn may find them.
            for cache_id in ended:
                self._handle(DropCache(cache_id))
        self._database.scrub()
        return len(ended)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            try:
                self.sweep_once()
            except Unavailable as error:
                log.warning("sweeping failed; it is tried again: %s", error)
            except Exception:
                # The edge of background work: the next turn finds what this one left.
                log.exception("sweeping failed; it is tried again")
