from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.app import ApiState
from core.ids import new_incarnation
from core.secret import RootSecret
from core.settings import Settings, load_settings
from core.transport.local import LocalTransport
from models.api_key import Scope
from models.schema import upgrade
from models.session import Database, sqlite_url
from prompting.format import PromptFormat
from prompting.served_model import ServedModel
from tests.api.harness import ALIAS, MODEL, Server, serving, user, words
from tests.fakes.clock import ManualClock
from tests.fakes.worker import WorkerDouble
from tests.tiny_models import built_in_folder


@pytest.fixture(scope="session")
def prompt_format() -> PromptFormat:
    return PromptFormat.load(built_in_folder())


@pytest.fixture
def served_model(prompt_format: PromptFormat) -> ServedModel:
    return ServedModel(
        name=MODEL,
        aliases=(ALIAS, "org/other"),
        display_name="Tiny",
        description="For tests.",
        context_tokens=400,
        input_token_limit=399,
        output_token_limit=399,
        min_cache_tokens=64,
        fingerprint="aa:bb",
        format=prompt_format,
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(
        data_dir=tmp_path, max_body_bytes=100_000, max_caches_per_project=30, request_timeout_seconds=30
    )


@pytest.fixture
def server(tmp_path: Path, settings: Settings, served_model: ServedModel) -> Iterator[Server]:
    database = Database(sqlite_url(tmp_path / "api.sqlite3"), settings.database_pool_size)
    upgrade(database)
    clock = ManualClock()
    transport = LocalTransport(new_incarnation())
    is_ready = [True]
    state = ApiState(
        settings=settings,
        database=database,
        clock=clock,
        secret=RootSecret.load_or_create(tmp_path / "secret"),
        transport=transport,
        served_model=served_model,
        ready=lambda: is_ready[0],
    )
    worker = WorkerDouble(transport, database, clock)
    with serving(state) as url:
        server = Server(url, state, worker, clock, "", "", is_ready)
        server.project_id = server.add_project("default")
        server.key = server.add_key(server.project_id, *Scope)
        yield server
        worker.release.set()
        worker.join()
    database.dispose()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def create_cache(http: httpx.Client) -> Callable[..., dict[str, Any]]:
    def create(**fields: Any) -> dict[str, Any]:
        response = http.post(
            "/v1/cachedContents", json={"model": MODEL, "contents": [user(words(100))]} | fields
        )
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    return create
