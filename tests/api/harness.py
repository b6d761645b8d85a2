"""A running server: real HTTP, database, tokenizer and transport; only the engine behind the transport is a double."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from api.app import ApiState, create_app
from api.server import server_config
from core import api_keys
from models.api_key import ApiKey, Scope, insert_api_key, revoke_api_key
from models.project import create_project
from tests.fakes.clock import ManualClock
from tests.fakes.worker import Script, WorkerDouble

MODEL = "tiny"
ALIAS = "gemini-2.5-flash"


@dataclass
class Server:
    """The server, its other side, and a project with a key for everything a project may do."""

    url: str
    state: ApiState
    worker: WorkerDouble
    clock: ManualClock
    project_id: str
    key: str
    is_ready: list[bool] = field(default_factory=lambda: [True])

    @property
    def script(self) -> Script:
        return self.worker.script

    @script.setter
    def script(self, script: Script) -> None:
        self.worker.script = script

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

    def client(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"x-goog-api-key": key or self.key}, timeout=20)


@contextmanager
def serving(state: ApiState) -> Iterator[str]:
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
