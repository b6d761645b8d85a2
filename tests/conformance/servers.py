"""The servers that the suite talks to: `headstart serve`, whole, in float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from cli.key_making import make_key
from core.clock import SystemClock
from core.data_folder import secret_path
from core.secret import RootSecret
from models.api_key import Scope
from models.project import create_project
from tests.databases import quick_folder
from tests.e2e.books import Books
from tests.e2e.home import Home
from tests.e2e.processes import Server, make_model, run_apart

ALIASES = ("gemini-2.5-flash", "org/served")
COMMON = {
    "dtype": "float32",
    "model_aliases": ",".join(ALIASES),
    "sweep_interval_seconds": "0.3",
}


BUILT_IN, TINY, SCRIPTED = "smollm2-135m-instruct", "tiny", "scripted"
TINY_CONTEXT_TOKENS = 4096
SLOW_QUOTA = 2000  # tokens that one project may cache at the slow server
TIMEOUT_SECONDS = 120
SCOPES = frozenset({Scope.CACHES, Scope.GENERATE, Scope.BILLING})


@dataclass(frozen=True)
class Key:
    """A project's key, and where it opens."""

    secret: str
    address: str
    project_id: str

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        headers = {"x-goog-api-key": self.secret}
        with httpx.Client(base_url=self.address, headers=headers, timeout=TIMEOUT_SECONDS) as http:
            yield http


@dataclass
class Host:
    """A server that runs, and the projects on it. model: the name under which it serves."""

    home: Home
    server: Server
    model: str
    project_count: int = 0

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def books(self) -> Books:
        return self.home.books

    @contextmanager
    def project(self) -> Iterator[Key]:
        """Make a project with a key; afterwards none of its caches is left."""
        self.project_count += 1
        with self.books.database.write() as session:
            project = create_project(session, f"project-{self.project_count}", SystemClock().now())
        key = self.new_key(project.id)
        yield key
        with key.http() as http:
            listed = http.get("/v1/cachedContents", params={"pageSize": 1000}).json()
            for cache in listed.get("cachedContents", []):
                http.delete(f"/v1/{cache['name']}")

    def new_key(self, project_id: str) -> Key:
        """What `headstart keys create` does, in a hundredth of its time."""
        secret = RootSecret.load_or_create(secret_path(self.home.data_dir))
        with self.books.database.write() as session:
            shown = make_key(session, SystemClock(), secret, project_id=project_id, name="", scopes=SCOPES)
        return Key(shown, self.address, project_id)


@contextmanager
def hosted(model: str, settings: dict[str, str]) -> Iterator[Host]:
    """Run a server; it must end as it should when it is told to, and its bill add up."""
    with quick_folder() as folder:
        home = Home(folder, COMMON | settings)
        try:
            host = Host(home, home.start(), model)
            yield host
            host.books.proven_bill(host.address, home.operator_key)
            assert host.server.terminate() == 0
        finally:
            home.close()


def tiny_settings(folder: Path, **settings: object) -> dict[str, str]:
    """Settings for a random model of 3 layers, which takes milliseconds for a token; made where it is not yet."""
    if not any(folder.iterdir()):
        shape = {"layers": 3, "kv_heads": 2, "head_size": 16, "context_tokens": TINY_CONTEXT_TOKENS}
        run_apart(make_model, folder, 1, **shape)
    given = {"model": folder / "tiny-llama-1", "model_name": TINY, "threads": 1, "arena_bytes": 64 << 20}
    return {name: str(value) for name, value in (given | settings).items()}


def scripted_settings(folder: Path) -> dict[str, str]:
    run_apart(make_scripted_model, folder / SCRIPTED)
    return {"model": str(folder / SCRIPTED), "threads": "1", "arena_bytes": str(64 << 20)}


def make_scripted_model(folder: Path) -> None:
    from tests.conformance.scripted_model import scripted_model_folder
    from tests.tiny_models import built_in_folder

    scripted_model_folder(built_in_folder(), folder)
