import pytest

from models.session import Database
from tests.caching.scene import Scene
from tests.caching.spending import Spending, make_spending
from tests.fakes.clock import ManualClock
from tests.models.rows import Customer, add_customer, add_example_prices


@pytest.fixture
def scene(database: Database) -> Scene:
    with database.write() as session:
        customer = add_customer(session, "one")
        add_example_prices(session)
    return Scene(database, ManualClock(), customer)


@pytest.fixture
def other(database: Database) -> Customer:
    """Somebody else."""
    with database.write() as session:
        return add_customer(session, "other")


@pytest.fixture
def spending(database: Database) -> Spending:
    """A project in a database whose prices are easy to add up; nothing limits it yet."""
    return make_spending(database)
