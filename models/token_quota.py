"""Quotas of cached tokens that differ from the server's: for a project, and a model or, with "*", each of its models."""

from collections.abc import Sequence

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base

ANY_MODEL = "*"


class TokenQuota(Base):
    __tablename__ = "token_quotas"
    __table_args__ = (CheckConstraint("max_cached_tokens >= 0", name="max_cached_tokens_not_negative"),)

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    max_cached_tokens: Mapped[int] = mapped_column(BigInteger)  # in all live caches of the model


def put_token_quota(session: Session, quota: TokenQuota) -> None:
    """Write it, in the place of the one that there was."""
    session.merge(quota)
    session.flush()


def find_max_cached_tokens(session: Session, project_id: str, model: str) -> int | None:
    """The project's own quota for a model: that model's before any model's; None where it has the server's."""
    rows = session.scalars(
        select(TokenQuota).where(
            TokenQuota.project_id == project_id, TokenQuota.model.in_((model, ANY_MODEL))
        )
    ).all()
    quotas = {row.model: row.max_cached_tokens for row in rows}
    return quotas.get(model, quotas.get(ANY_MODEL))


def list_token_quotas(session: Session, project_id: str | None) -> Sequence[TokenQuota]:
    """List the quotas of one project or, with None, of all."""
    query = select(TokenQuota).order_by(TokenQuota.project_id, TokenQuota.model)
    if project_id is not None:
        query = query.where(TokenQuota.project_id == project_id)
    return session.scalars(query).all()


def remove_token_quota(session: Session, project_id: str, model: str) -> bool:
    """Remove a quota; False where there is none."""
    removed = session.scalars(
        delete(TokenQuota)
        .where(TokenQuota.project_id == project_id, TokenQuota.model == model)
        .returning(TokenQuota.model)
    ).all()
    return bool(removed)
