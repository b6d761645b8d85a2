"""Makes API keys: the secret they are hashed with, and the row each leaves."""

from pathlib import Path

from sqlalchemy.orm import Session

from core import api_keys
from core.clock import Clock, instant
from core.errors import SecretInvalid
from core.secret import RootSecret
from models.api_key import ApiKey, Scope, has_api_keys, insert_api_key


def load_secret(path: Path, session: Session) -> RootSecret:
    """Read the secret file, or make it where no key depends on one; raise SecretInvalid where it was lost."""
    if not path.exists() and has_api_keys(session):
        raise SecretInvalid(
            f"The secret file {path} is gone, so no stored key can work. Put it back from a backup, or start with an "
            "empty data folder and database.",
            field="data_dir",
        )
    return RootSecret.load_or_create(path)


def make_key(
    session: Session,
    clock: Clock,
    secret: RootSecret,
    *,
    project_id: str | None,
    name: str,
    scopes: frozenset[Scope],
) -> str:
    """Store a new key, of an operator where there is no project, and give the text that its owner keeps."""
    minted = api_keys.mint(secret.derive(api_keys.PEPPER))
    key = ApiKey(
        id=minted.key_id,
        project_id=project_id,
        name=name,
        secret_mac=minted.mac,
        scopes=scopes,
        created_at=instant(session, clock),
    )
    insert_api_key(session, key)
    return minted.shown
