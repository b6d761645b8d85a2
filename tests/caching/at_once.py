"""Steps that are taken at the same time."""

import threading
from collections.abc import Callable

from core.errors import AppError


def at_once(*steps: Callable[[], object]) -> list[object]:
    """Run the steps in threads that start together; give what each returned or which of our errors it raised."""
    outcomes: list[object] = [None] * len(steps)
    start = threading.Barrier(len(steps))

    def run(index: int, step: Callable[[], object]) -> None:
        start.wait()
        try:
            outcomes[index] = step()
        except AppError as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
