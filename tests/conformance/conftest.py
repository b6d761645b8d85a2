from collections.abc import Iterator

import pytest

from tests.conformance.client import Client
from tests.conformance.drivers import DRIVERS, Driver, drivers
from tests.conformance.servers import Host, Key, hosted


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A server of the model that comes along."""
    settings = {"arena_bytes": str(2 << 30)}
    with hosted(tmp_path_factory.mktemp("host"), "smollm2-135m-instruct", settings) as host:
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
    return all_drivers[name]


@pytest.fixture
def key(host: Host) -> Key:
    """A project of the test's own."""
    return host.new_key()


@pytest.fixture
def client(driver: Driver, host: Host, key: Key) -> Client:
    """Each client in turn."""
    return Client(driver, host, key)
