"""Idempotency keys: which cache a create with a customer's own key has made, so that a repeated create makes no second.

Key and body are kept as digests only.
"""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, delete
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, UtcDateTime


class IdempotencyKey(Base):
    __tablename__ = "idempotency_keys"
    __table_args__ = (
        CheckConstraint("length(key_digest) = 32", name="key_digest_size"),
        CheckConstraint("length(body_digest) = 32", name="body_digest_size"),
        Index(None, "created_at"),
    )

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key_digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    body_digest: Mapped[bytes] = mapped_column(LargeBinary)
    cache_id: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


def find_idempotency_key(session: Session, project_id: str, key_digest: bytes) -> IdempotencyKey | None:
    return session.get(IdempotencyKey, (project_id, key_digest), populate_existing=True)


def put_idempotency_key(session: Session, row: IdempotencyKey) -> None:
    """Write it, in the place of an older one. The caller holds the project's lock."""
    # Not merged: the sweeper, which takes no such lock, may remove an old one between being read and being written.
    key = (IdempotencyKey.project_id == row.project_id, IdempotencyKey.key_digest == row.key_digest)
    session.execute(delete(IdempotencyKey).where(*key))
    session.add(row)
    session.flush()


def delete_idempotency_keys(session: Session, until: datetime) -> None:
    """Forget those made at `until` or before."""
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at <= until))
