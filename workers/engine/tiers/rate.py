"""How fast something has gone of late: what the choice between loading and recomputing is made from."""

from threading import Lock

_FADING = 0.8


class Rate:
    """Amounts over seconds, of which each earlier one counts a fifth less. One large transfer weighs as much as many small."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._amount = 0.0
        self._seconds = 0.0

    def observe(self, amount: float, seconds: float) -> None:
        with self._lock:
            self._amount = self._amount * _FADING + amount
            self._seconds = self._seconds * _FADING + seconds

    @property
    def per_second(self) -> float | None:
        """None until something was observed."""
        with self._lock:
            return self._amount / self._seconds if self._seconds > 0 else None
