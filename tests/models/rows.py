"""A migrated database in a file, and somebody who may own caches in it."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from core.ids import new_key_id
from models.api_key import ApiKey, Scope, insert_api_key
from models.project import create_project
from models.schema import upgrade
from models.session import Database, sqlite_url
from tests.fakes.clock import START


@dataclass(frozen=True, slots=True)
class Customer:
    project_id: str
    key_id: str


def open_database(path: Path, pool_size: int = 4) -> Database:
    database = Database(sqlite_url(path), pool_size)
    upgrade(database)
    return database


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
