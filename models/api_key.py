"""API keys: only a keyed hash of the secret is stored. A key without a project is an operator's."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from sqlalchemy import CheckConstraint, Dialect, ForeignKey, LargeBinary, Text, select
from sqlalchemy.orm import Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator

from core.errors import KeyNotFound
from models.base import TO_CHANGE, Base, UtcDateTime


class Scope(StrEnum):
    CACHES = "caches"
    GENERATE = "generate"
    BILLING = "billing"
    ADMIN = "admin"


class Scopes(TypeDecorator[frozenset[Scope]]):
    """A set of scopes, as words in the order of their definition."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: frozenset[Scope] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else " ".join(scope for scope in Scope if scope in value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> frozenset[Scope] | None:  # noqa: ARG002
        return None if value is None else frozenset(Scope(word) for word in value.split())


class ApiKey(Base):
    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("length(secret_mac) = 32", name="secret_mac_size"),
        CheckConstraint("revoked_at IS NULL OR revoked_at >= created_at", name="revoked_after_created"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    name: Mapped[str]
    secret_mac: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    scopes: Mapped[frozenset[Scope]] = mapped_column(Scopes)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


def insert_api_key(session: Session, key: ApiKey) -> None:
    session.add(key)
    session.flush()


def find_api_key(session: Session, key_id: str) -> ApiKey | None:
    """Find a key by its id, revoked or not."""
    return session.get(ApiKey, key_id)


def has_api_keys(session: Session) -> bool:
    """Whether there is any key, revoked or not, of anybody."""
    return session.scalars(select(ApiKey.id).limit(1)).first() is not None


def list_api_keys(session: Session, project_id: str | None) -> Sequence[ApiKey]:
    """List a project's keys, oldest first; None lists the operator's."""
    return session.scalars(
        select(ApiKey).where(ApiKey.project_id == project_id).order_by(ApiKey.created_at, ApiKey.id)
    ).all()


def revoke_api_key(session: Session, key_id: str, now: datetime) -> ApiKey:
    """End a key; one that has ended already keeps its instant. Raises KeyNotFound."""
    key = session.get(ApiKey, key_id, with_for_update=TO_CHANGE)
    if key is None:
        raise KeyNotFound(f"There is no key {key_id}. `headstart keys list` shows the keys.", field="key")
    if key.revoked_at is None:
        key.revoked_at = max(now, key.created_at)
        session.flush()
    return key
