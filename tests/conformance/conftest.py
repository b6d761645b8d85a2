from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.client import Client
from tests.conformance.drivers import DRIVERS, Driver, drivers
from tests.conformance.sdks import SDKS, Sdk
from tests.conformance.servers import (
    BUILT_IN,
    SCRIPTED,
    SLOW_QUOTA,
    TINY,
    Host,
    Key,
    hosted,
    scripted_settings,
    tiny_settings,
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def tiny_host(tiny_model: Path) -> Iterator[Host]:
    with hosted(TINY, tiny_settings(tiny_model)) as host:
        yield host


@pytest.fixture(scope="session")
def built_in_host() -> Iterator[Host]:
    with hosted(BUILT_IN, {"arena_bytes": str(1 << 30)}) as host:
        yield host


@pytest.fixture(scope="session")
def scripted_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with hosted(SCRIPTED, scripted_settings(tmp_path_factory.mktemp("scripted"))) as host:
        yield host


@pytest.fixture(scope="session")
def slow_host(tiny_model: Path) -> Iterator[Host]:
    """A server that computes one prompt token at a time, soon fills a silence, and lets a project cache little."""
    settings = tiny_settings(
        tiny_model, prefill_chunk_tokens=1, keep_alive_seconds=0.05, max_cached_tokens_per_project=SLOW_QUOTA
    )
    with hosted(TINY, settings) as host:
        yield host


@pytest.fixture(scope="session")
def all_drivers() -> Iterator[dict[str, Driver]]:
    made = drivers()
    yield made
    for driver in made.values():
        driver.close()


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, all_drivers: dict[str, Driver]) -> Driver:
    name: str = request.param
    driver = all_drivers[name]
    driver.open()
    return driver


@pytest.fixture(params=SDKS, ids=[sdk.name for sdk in SDKS])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    """Each version of each client in turn, to be looked at or run as it is."""
    found: Sdk = request.param
    return found


@pytest.fixture
def key(tiny_host: Host) -> Iterator[Key]:
    """A project of the test's own."""
    with tiny_host.project() as key:
        yield key


@pytest.fixture
def http(key: Key) -> Iterator[httpx.Client]:
    with key.http() as http:
        yield http


@pytest.fixture
def client(driver: Driver, tiny_host: Host, key: Key) -> Client:
    """Each client in turn."""
    return Client(driver, tiny_host, key)


@pytest.fixture
def built_in(driver: Driver, built_in_host: Host) -> Iterator[Client]:
    """Each client in turn, with the model that comes along."""
    with built_in_host.project() as key:
        yield Client(driver, built_in_host, key)


@pytest.fixture
def scripted(driver: Driver, scripted_host: Host) -> Iterator[Client]:
    """Each client in turn, with a model whose answer is known."""
    with scripted_host.project() as key:
        yield Client(driver, scripted_host, key)


@pytest.fixture
def slow(driver: Driver, slow_host: Host) -> Iterator[Client]:
    """Each client in turn, at the slow server."""
    with slow_host.project() as key:
        yield Client(driver, slow_host, key)
