from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from core.settings import Settings, load_settings
from models.schema import upgrade
from models.session import Database
from prompting.format import PromptFormat
from prompting.served_model import ServedModel
from tests.api.harness import ALIAS, MODEL, Server, open_server, user, words
from tests.databases import Kind, quick_folder
from tests.models.rows import open_database
from tests.postgresql import PostgreSQL
from workers.engine.loading.built_in import built_in_model
from workers.engine.loading.progress import silent


@pytest.fixture(scope="session")
def served_model() -> ServedModel:
    """The tokenizer and template of the built-in model under small limits; nothing computes with it."""
    folder = built_in_model(load_settings().model_cache_dir, silent)
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
        kv_bytes_per_token=46080,
        cache_token_capacity=6400,
        format=PromptFormat.load(folder),
    )


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(
        data_dir=tmp_path_factory.mktemp("data"),
        max_body_bytes=100_000,
        max_caches_per_project=30,
        max_running_requests=4,
        request_timeout_seconds=30,
    )


@pytest.fixture(scope="session")
def sqlite_server(settings: Settings, served_model: ServedModel) -> Iterator[Server]:
    with quick_folder() as folder:
        database = open_database(folder / "api.sqlite3", settings.database_pool_size)
        with open_server(folder, database, settings, served_model) as server:
            yield server
        database.dispose()


@pytest.fixture(scope="session")
def postgresql_server(
    postgresql: PostgreSQL,
    tmp_path_factory: pytest.TempPathFactory,
    settings: Settings,
    served_model: ServedModel,
) -> Iterator[Server]:
    database = Database(postgresql.create(), settings.database_pool_size)
    upgrade(database)
    with open_server(tmp_path_factory.mktemp("server"), database, settings, served_model) as server:
        yield server
    database.dispose()


@pytest.fixture
def server_kind() -> Kind:
    """The database under the shared server; `on_each_database` makes it both."""
    return Kind.SQLITE


@pytest.fixture
def server(server_kind: Kind, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server all tests share, with a project that is this test's own."""
    shared: Server = request.getfixturevalue(f"{server_kind}_server")
    shared.begin()
    yield shared
    shared.worker.end()


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
