"""A migrated database in a file, somebody who may own caches in it, and rows that every check accepts."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.orm import Session

from billing.price_book import load_price_book
from billing.prices import store
from core.ids import new_cache_id, new_key_id, new_request_id
from models.api_key import ApiKey, Scope, insert_api_key
from models.cache import Cache, CacheState
from models.project import create_project
from models.schema import upgrade
from models.session import Database, sqlite_url
from models.usage import Usage, UsageKind, UsageState
from tests.fakes.clock import START


@dataclass(frozen=True, slots=True)
class Customer:
    project_id: str
    key_id: str


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


# What `make_cache` is to change for a cache in another state than PENDING.
ACTIVE: dict[str, object] = {"state": CacheState.ACTIVE, "activated_at": START}
_ENDED: dict[str, object] = {"prefix_text": None, "messages": None, "token_ids": None, "ended_at": after(10)}
EXPIRED = ACTIVE | _ENDED | {"state": CacheState.EXPIRED, "end_reason": "EXPIRED", "ended_at": after(3600)}
DELETED = ACTIVE | _ENDED | {"state": CacheState.DELETED, "end_reason": "DELETED"}
FAILED: dict[str, object] = _ENDED | {
    "state": CacheState.FAILED,
    "end_reason": "FAILED",
    "failure": "cancelled",
}


def open_database(path: Path, pool_size: int = 4) -> Database:
    path.write_bytes(_migrated())
    return Database(sqlite_url(path), pool_size)


def add_example_prices(session: Session) -> None:
    """The prices that ship: nothing is sold without any."""
    store(session, load_price_book(None), START)


def add_customer(session: Session, name: str) -> Customer:
    project = create_project(session, name, START)
    key = add_key(session, project.id)
    return Customer(project.id, key.id)


def add_key(session: Session, project_id: str | None) -> ApiKey:
    key = ApiKey(
        id=new_key_id(),
        project_id=project_id,
        name="test",
        secret_mac=secrets.token_bytes(32),
        scopes=frozenset({Scope.CACHES, Scope.GENERATE}),
        created_at=START,
    )
    insert_api_key(session, key)
    return key


def make_cache(customer: Customer, **changes: object) -> Cache:
    """A pending cache that every check accepts, save for the changes."""
    columns: dict[str, object] = {
        "id": new_cache_id(),
        "project_id": customer.project_id,
        "key_id": customer.key_id,
        "model": "tiny",
        "fingerprint": "aa:bb",
        "state": CacheState.PENDING,
        "token_count": 3,
        "prefix_text": "<user>Words",
        "messages": [{"role": "user", "text": "Words"}],
        "token_ids": (1, 2, 3),
        "incarnation": "inc_1",
        "fencing_token": 1,
        "created_at": START,
        "updated_at": START,
        "expire_at": after(3600),
    }
    return Cache(**(columns | changes))


def make_usage(customer: Customer, **changes: object) -> Usage:
    """A reserved generation that every check accepts, save for the changes."""
    columns: dict[str, object] = {
        "id": new_request_id(),
        "kind": UsageKind.GENERATE,
        "project_id": customer.project_id,
        "key_id": customer.key_id,
        "model": "tiny",
        "state": UsageState.RESERVED,
        "attempt": 1,
        "incarnation": "inc_1",
        "prompt_tokens": 10,
        "input_tokens": 7,
        "cache_read_tokens": 3,
        "cache_write_tokens": 0,
        "output_tokens": 0,
        "created_at": START,
    }
    return Usage(**(columns | changes))


@cache
def _migrated() -> bytes:
    """The file that migrations make: made once, since hundreds of tests start with it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "migrated.sqlite3"
        database = Database(sqlite_url(path), pool_size=1)
        upgrade(database)
        database.dispose()
        return path.read_bytes()
