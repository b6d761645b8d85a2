"""The time that a run may take, and what is left out where it is short."""

import time


class OutOfTime(Exception):  # noqa: N818 -- said by what happened
    """The budget is spent: what is not measured by now is left out."""


class Budget:
    def __init__(self, seconds: float) -> None:
        self._ends_at = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        return self._ends_at - time.monotonic()

    def check(self) -> None:
        """Raises OutOfTime where nothing is left."""
        if self.left_seconds <= 0:
            raise OutOfTime
