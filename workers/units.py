"""Database work of a worker: short units in a bounded number of threads, off the engine thread."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from core.errors import AppError, Internal

log = logging.getLogger(__name__)


class Units:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="unit")

    def start(self, unit: Callable[[], None], on_failure: Callable[[AppError], None]) -> None:
        """Run a unit. The edge of the worker: a failure is logged once and told, never lost.

        Raises RuntimeError after stop().
        """

        def run() -> None:
            try:
                unit()
            except AppError as error:
                on_failure(error)
            except Exception as error:
                log.exception("a unit of work failed")
                on_failure(Internal(f"The server failed to record its work: {type(error).__name__}."))

        self._pool.submit(run)

    def stop(self) -> None:
        """Finish what was started, take nothing new."""
        self._pool.shutdown(wait=True)
