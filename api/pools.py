"""Where work that blocks is done: short database units and tokenising, each in a bounded number of threads.

A unit is a plain function of a session; it begins and ends inside its thread, so no session outlives an await.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from sqlalchemy.orm import Session

from models.session import Database

T = TypeVar("T")


class Pools:
    def __init__(self, database: Database, database_threads: int) -> None:
        self._database = database
        self._units = CapacityLimiter(database_threads)
        self._computing = CapacityLimiter(os.cpu_count() or 1)

    async def read(self, unit: Callable[[Session], T]) -> T:
        """Run a unit on one snapshot of the database."""

        def run() -> T:
            with self._database.read() as session:
                return unit(session)

        return await anyio.to_thread.run_sync(run, limiter=self._units)

    async def write(self, unit: Callable[[Session], T]) -> T:
        """Run a unit and commit it; when this returns, it is committed."""

        def run() -> T:
            with self._database.write() as session:
                return unit(session)

        return await anyio.to_thread.run_sync(run, limiter=self._units)

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work that would hold up the event loop."""
        return await anyio.to_thread.run_sync(work, limiter=self._computing)
