"""One server for all tests that leave it running."""

from dataclasses import dataclass

from models.cache import CacheState
from models.usage import UsageState
from tests.e2e.books import Books
from tests.e2e.customer import Customer
from tests.e2e.home import Home
from tests.e2e.processes import Server


@dataclass
class Shared:
    """A server for all tests that leave it running, and a customer whose one cache is always there."""

    home: Home
    server: Server
    ballast: Customer

    @property
    def books(self) -> Books:
        return self.home.books

    def new_customer(self, *scopes: str) -> Customer:
        """Make a project with a key."""
        name = f"project-{len(self.home.customers)}"
        self.home.command("projects", "create", name)
        customer = Customer(self.server.address, self.new_key(name, *scopes), self.books.project_id(name))
        self.home.customers.append(customer)
        return customer

    def new_key(self, project: str, *scopes: str) -> str:
        flags = ["--scopes", ",".join(scopes)] if scopes else []
        return self.home.command("keys", "create", "--project", project, *flags).splitlines()[0]

    def unsettled(self, project_id: str) -> list[str]:
        """Ids of requests that run, and of caches that are built."""
        reserved = [row.id for row in self.books.usage(project_id) if row.state is UsageState.RESERVED]
        return reserved + [
            each.id for each in self.books.caches(project_id) if each.state is CacheState.PENDING
        ]
