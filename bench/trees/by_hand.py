"""A thread whose work is done only when it is told to: what may happen at any moment happens at one that a walk chooses."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from workers.engine.tiers.errors import TierError


class ByHand(Executor):
    """In order. What no tier may raise is raised where the work is done."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self) -> bool:
        """Do what has waited longest; False where nothing does."""
        if not self._waiting:
            return False
        future, do = self._waiting.popleft()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(do())
        except TierError as error:
            future.set_exception(error)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - nothing is under way
        if cancel_futures:
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
