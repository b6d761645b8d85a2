"""Keeps the books up to date: posts storage by the hour, rolls the ledger up, and proves it. No bill waits for it."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from billing.bookkeeping import post_due, roll_up_posted
from billing.limits import LimitStatus, tell_soft_limits
from billing.money import usd
from billing.verify import Finding, Look, list_looks, take
from core.clock import Clock, instant
from core.errors import Unavailable
from core.metrics import Metrics
from models.limit import WHOLE
from models.session import Database

log = logging.getLogger(__name__)
_VERIFIED = timedelta(days=2)
_LOGGED = 20


class _StoppedError(Exception):
    """The server stops, and does not wait for the rest."""


class Bookkeeper:
    """A thread that takes a turn at once, and every minute or so. What a turn leaves, because it failed, the next one finds."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        interval_seconds: float,
        verify_interval_seconds: float,
    ) -> None:
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._interval_seconds = interval_seconds
        self._verify_interval_seconds = verify_interval_seconds
        self._verify_next_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bookkeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def keep(self) -> None:
        """Post all that is due, roll it up, and tell of soft limits that are reached by it; each whatever became of the others."""
        for step in (self._post, self._roll_up, self._tell_soft_limits):
            self._attempt(step)

    def verify(self) -> list[Finding]:
        """Reconcile what the last days were charged, and tell of it. That it could not be done counts as a finding, but not that
        the database does not answer: when it was done last is told, too.

        Each look has a snapshot of its own: none is held for long, which would keep on SQLite what is deleted from being gone.
        """
        with self._database.read() as session:
            now = instant(session, self._clock)
            since = (now - _VERIFIED).replace(minute=0, second=0, microsecond=0)
            looks = list_looks(session, now, since)
        try:
            findings = [finding for look in looks for finding in self._take(look)]
        except (_StoppedError, Unavailable):
            raise
        except Exception:
            self._metrics.billing_findings.set(1)
            raise
        self._metrics.billing_findings.set(len(findings))
        self._metrics.billing_verified_at.set(now.timestamp())
        for finding in findings[:_LOGGED]:
            log.error("the books do not agree: %s: %s", finding.check, finding.what)
        return findings

    def _take(self, look: Look) -> list[Finding]:
        if self._stopping.is_set():
            raise _StoppedError
        with self._database.read() as session:
            return take(session, look)

    def _post(self) -> None:
        passed_over = post_due(self._database, self._clock, self._stopping.is_set)
        self._metrics.billing_passed_over.set(len(passed_over))
        for what, why in list(passed_over.items())[:_LOGGED]:
            log.error("%s is not posted: %s", what, why)

    def _roll_up(self) -> None:
        roll_up_posted(self._database, self._stopping.is_set)

    def _tell_soft_limits(self) -> None:
        with self._database.write() as session:
            # Told before it is put on record that it was: once again, if need be, rather than never.
            for status in tell_soft_limits(session, instant(session, self._clock)):
                self._tell(status)

    def _tell(self, status: LimitStatus) -> None:
        limit = status.limit
        self._metrics.soft_limits_reached.labels(whose="project" if limit.key_id == WHOLE else "key").inc()
        log.warning(
            "a soft limit is reached: %s USD are spent in %s of %s USD",
            usd(status.spent_nano_usd),
            status.month,
            usd(limit.soft_nano_usd or 0),
            extra={"project_id": limit.project_id, "key_id": limit.key_id or None},
        )

    def _verify_if_due(self) -> None:
        if time.monotonic() >= self._verify_next_at:
            # Also where it fails: whatever is wrong, it takes long.
            self._verify_next_at = time.monotonic() + self._verify_interval_seconds
            self.verify()

    def _attempt(self, step: Callable[[], None]) -> None:
        if self._stopping.is_set():
            return
        try:
            step()
        except _StoppedError:
            log.info("the server stops: what was charged is verified when it has started again")
        except Unavailable as error:
            log.warning("keeping the books failed; it is tried again: %s", error)
        except Exception:
            # The edge of background work: the next turn finds what this one left.
            log.exception("keeping the books failed; it is tried again")

    def _run(self) -> None:
        while True:
            self.keep()
            self._attempt(self._verify_if_due)
            if self._stopping.wait(self._interval_seconds):
                return
