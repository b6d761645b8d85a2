from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.workers.engine.driving import Driver
from tests.workers.engine.tiny import tiny_modules
from workers.engine.residence import Residence

Drive = Callable[..., Driver]


@pytest.fixture(autouse=True)
def loads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """KV is loaded, whatever was measured: a tiny model computes as fast as a busy disk reads. `undo()` has it chosen by rates."""
    monkeypatch.setattr(Residence, "is_worth_loading", lambda *_: True)
    return monkeypatch


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Starts engines; after the test each must have ended everything and hold no memory."""
    drivers: list[Driver] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny matrices: a second thread only waits for the first

    def start(family: str = "llama", **config: Any) -> Driver:
        drivers.append(Driver(*tiny_modules(family), **config))
        return drivers[-1]

    yield start
    try:
        for driver in drivers:
            driver.close()
    finally:
        torch.set_num_threads(threads)
