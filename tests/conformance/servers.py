"""The servers that the suite talks to: `headstart serve`, whole, in float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.books import Books
from tests.e2e.home import Home
from tests.e2e.processes import Server

ALIASES = ("gemini-2.5-flash", "org/served")
COMMON = {
    "dtype": "float32",
    "model_aliases": ",".join(ALIASES),
    "sweep_interval_seconds": "0.3",
}


@dataclass(frozen=True)
class Key:
    """A project's key, and where it opens."""

    secret: str
    address: str
    project_id: str
    project_name: str


@dataclass
class Host:
    """A server that runs, and the projects on it. model: the name under which it serves."""

    home: Home
    server: Server
    model: str
    projects: int = 0

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def books(self) -> Books:
        return self.home.books

    def new_key(self) -> Key:
        """Make a project with a key."""
        self.projects += 1
        name = f"project-{self.projects}"
        self.home.command("projects", "create", name)
        return self.another_key(name)

    def another_key(self, project: str, *flags: str) -> Key:
        printed = self.home.command("keys", "create", "--project", project, *flags)
        return Key(printed.splitlines()[0], self.address, self.books.project_id(project), project)


@contextmanager
def hosted(folder: Path, model: str, settings: dict[str, str]) -> Iterator[Host]:
    """Run a server; it must end as it should when it is told to."""
    home = Home(folder, COMMON | settings)
    try:
        host = Host(home, home.start(), model)
        yield host
        assert host.server.terminate() == 0
    finally:
        home.close()
