"""Tests that need a GPU. Without one they are skipped: `make test` proves what it can on CPUs, bench/gpu.sh runs these."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@pytest.fixture(autouse=True)
def _all_work_is_done(cuda: torch.device) -> Iterator[None]:
    """A kernel that fails does so later: let it be in the test that asked for it."""
    yield
    torch.cuda.synchronize(cuda)
