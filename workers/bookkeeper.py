"""Keeps the books up to date: posts storage by the hour, rolls the ledger up, and proves it. No bill waits for it."""

import logging
import threading
import time
from datetime import timedelta

from billing.bookkeeping import keep_books
from billing.limits import tell_soft_limits
from billing.money import usd
from billing.verify import Finding, verify
from core.clock import Clock, instant
from core.errors import Unavailable
from core.metrics import Metrics
from models.limit import WHOLE
from models.session import Database

log = logging.getLogger(__name__)
_VERIFIED = timedelta(days=2)
_FINDINGS_LOGGED = 20


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
        self._verified_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bookkeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def keep(self) -> None:
        """Post all that is due, roll it up, and tell of soft limits that are reached by it."""
        keep_books(self._database, self._clock, self._stopping.is_set)
        with self._database.write() as session:
            reached = tell_soft_limits(session, instant(session, self._clock))
        for status in reached:
            limit = status.limit
            self._metrics.soft_limits_reached.labels(
                whose="project" if limit.key_id == WHOLE else "key"
            ).inc()
            log.warning(
                "a soft limit is reached: %s USD are spent in %s of %s USD",
                usd(status.spent_nano_usd),
                status.month,
                usd(limit.soft_nano_usd or 0),
                extra={"project_id": limit.project_id, "key_id": limit.key_id or None},
            )

    def verify(self) -> list[Finding]:
        """Reconcile what the last days were charged, and tell of it."""
        with self._database.read() as session:
            now = instant(session, self._clock)
            since = (now - _VERIFIED).replace(minute=0, second=0, microsecond=0)
            findings = list(verify(session, now, since))
        self._metrics.billing_findings.set(len(findings))
        for finding in findings[:_FINDINGS_LOGGED]:
            log.error("the books do not agree: %s: %s", finding.check, finding.what)
        return findings

    def _run(self) -> None:
        while True:
            try:
                self.keep()
                if time.monotonic() - self._verified_at >= self._verify_interval_seconds:
                    self._verified_at = time.monotonic()
                    self.verify()
            except Unavailable as error:
                log.warning("keeping the books failed; it is tried again: %s", error)
            except Exception:
                # The edge of background work: the next turn finds what this one left.
                log.exception("keeping the books failed; it is tried again")
            if self._stopping.wait(self._interval_seconds):
                return
