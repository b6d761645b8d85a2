from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.books import Books
from tests.e2e.customer import MODEL, Customer, document
from tests.e2e.home import Home
from tests.e2e.processes import make_model, run_apart, wait_until
from tests.e2e.shared import Shared

CONTEXT_TOKENS = 4096
_LAYERS, _KV_HEADS, _HEAD_SIZE, _FLOAT_BYTES = 3, 2, 16, 4
# Blocks of 64 tokens: just enough for one context in the half that pins leave free.
_ARENA_BLOCKS = 130


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models with the same tokenizer and template and other weights."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (1, 2):
        run_apart(
            make_model,
            folder,
            seed,
            layers=_LAYERS,
            kv_heads=_KV_HEADS,
            head_size=_HEAD_SIZE,
            context_tokens=CONTEXT_TOKENS,
        )
    return folder / "tiny-llama-1", folder / "tiny-llama-2"


@pytest.fixture(scope="session")
def settings(model_folders: tuple[Path, Path]) -> dict[str, str]:
    """Small steps on one thread: a long prompt or answer takes seconds, and others get their turn meanwhile."""
    block_bytes = 64 * _LAYERS * 2 * _KV_HEADS * _HEAD_SIZE * _FLOAT_BYTES
    return {
        "model": str(model_folders[0]),
        "model_name": MODEL,
        "model_aliases": "gemini-2.5-flash",
        "model_cache_dir": str(model_folders[0].parent),
        "dtype": "float32",
        "threads": "1",
        "prefill_chunk_tokens": "16",
        "arena_bytes": str(_ARENA_BLOCKS * block_bytes),
        "kv_disk_bytes": str(_ARENA_BLOCKS * block_bytes),  # no more room for caches than without a disk
        "sweep_interval_seconds": "0.3",
    }


@pytest.fixture
def home(tmp_path: Path, settings: dict[str, str]) -> Iterator[Home]:
    """A data folder of the test's own, for tests that start and stop servers."""
    home = Home(tmp_path, settings)
    yield home
    home.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[Shared]:
    home = Home(tmp_path_factory.mktemp("shared"), settings)
    try:
        server = home.start()
        ballast = home.customer(server)
        ballast.create(document(256, "ballast"), ttl="86400s")
        yield Shared(home, server, ballast)
        assert server.terminate() == 0
    finally:
        home.close()


@pytest.fixture
def customer(shared: Shared) -> Iterator[Customer]:
    """A project of the test's own on the shared server, which must be as free after the test as before."""
    held_before = shared.ballast.held_tokens()
    customer = shared.new_customer()
    yield customer
    wait_until(lambda: not shared.unsettled(customer.project_id), "everything is settled")
    for name in customer.names():
        customer.delete(name)
    wait_until(
        lambda: shared.ballast.held_tokens() == held_before, "the memory of ended caches is given back"
    )
    shared.books.proven_bill(customer.address, customer.key)
    customer.close()


@pytest.fixture
def books(shared: Shared) -> Books:
    return shared.books
