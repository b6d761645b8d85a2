"""A running server: real HTTP, database, tokenizer and transport; only the engine behind the transport is a double."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from api.app import ApiState, create_app
from api.server import server_config
from core import api_keys
from core.ids import new_incarnation
from core.secret import RootSecret
from core.settings import Settings
from core.transport.local import LocalTransport
from models.api_key import ApiKey, Scope, insert_api_key, revoke_api_key
from models.project import create_project
from models.session import Database
from prompting.served_model import ServedModel
from tests.databases import Kind
from tests.fakes.clock import START, ManualClock
from tests.fakes.worker import Script, WorkerDouble
from tests.models.rows import add_example_prices

# For files whose tests reach into the database; what parses, limits and streams needs it once.
on_each_database = pytest.mark.parametrize("server_kind", Kind)

MODEL = "tiny"
ALIAS = "gemini-2.5-flash"


@dataclass
class Server:
    """The server, its other side, and a project with a key for everything a project may do."""

    url: str
    state: ApiState
    worker: WorkerDouble
    clock: ManualClock
    is_ready: list[bool]
    project_id: str = ""
    key: str = ""

    @property
    def script(self) -> Script:
        return self.worker.script

    @script.setter
    def script(self, script: Script) -> None:
        self.worker.script = script

    def begin(self) -> None:
        """Start a test: a project of its own with a key, the clock and the worker as they were."""
        self.clock.advance((START - self.clock.now()).total_seconds())
        self.worker.reset()
        self.is_ready[0] = True
        self.project_id = self.add_project(f"project {time.monotonic_ns()}")
        self.key = self.add_key(self.project_id, *Scope)

    def add_key(self, project_id: str | None, *scopes: Scope) -> str:
        minted = api_keys.mint(self.state.secret.derive(api_keys.PEPPER))
        with self.state.database.write() as session:
            row = ApiKey(
                id=minted.key_id,
                project_id=project_id,
                name="test",
                secret_mac=minted.mac,
                scopes=frozenset(scopes),
                created_at=self.clock.now(),
            )
            insert_api_key(session, row)
        return minted.shown

    def add_project(self, name: str) -> str:
        with self.state.database.write() as session:
            return create_project(session, name, self.clock.now()).id

    def revoke(self, shown: str) -> None:
        with self.state.database.write() as session:
            revoke_api_key(session, str(api_keys.parse(shown)), self.clock.now())

    @contextmanager
    def later(self, call: Callable[[], httpx.Response]) -> Iterator[Future[httpx.Response]]:
        """Make a call that does not return at once."""
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(call)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.005)

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"x-goog-api-key": key or self.key}
        # To read the certificates, which plain HTTP has no use for, takes longer than most tests.
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, verify=False)


@contextmanager
def open_server(
    folder: Path, database: Database, settings: Settings, served_model: ServedModel
) -> Iterator[Server]:
    """Start a server on an empty database, its secret in `folder`, and stop it with everything that runs in it."""
    clock, is_ready = ManualClock(), [True]
    transport = LocalTransport(new_incarnation())
    state = ApiState(
        settings=settings,
        database=database,
        clock=clock,
        secret=RootSecret.load_or_create(folder / "secret"),
        transport=transport,
        served_model=served_model,
        ready=lambda: is_ready[0],
    )
    worker = WorkerDouble(transport, database, clock)
    with database.write() as session:
        add_example_prices(session)
    with _serving(state) as url:
        yield Server(url, state, worker, clock, is_ready)
        worker.end()


@contextmanager
def _serving(state: ApiState) -> Iterator[str]:
    server = uvicorn.Server(server_config(create_app(state), "127.0.0.1", 0))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.002)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


def words(count: int) -> str:
    """Text of a bit more than `count` tokens."""
    return " ".join(f"word{index}" for index in range(count // 2))
