"""Implicit hits: how many tokens of a prompt were read though no cache was named, and whether a project reuses KV so."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "5e0d9a3c7b18"
down_revision: str | None = "b2c1f4a90d37"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CHECKS = {
    "ck_usage_implicit_part": "implicit_cache_tokens >= 0 AND implicit_cache_tokens <= cache_read_tokens",
    "ck_usage_implicit_when_final": "implicit_cache_tokens = 0 OR state = 'FINAL'",
}


def upgrade() -> None:
    # Not in a batch: SQLite would drop and remake a table that others refer to.
    op.add_column("projects", sa.Column("reuses_kv", sa.Boolean(), server_default=sa.true(), nullable=False))
    with op.batch_alter_table("usage") as usage:
        usage.add_column(
            sa.Column("implicit_cache_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False)
        )
        for name, condition in _CHECKS.items():
            usage.create_check_constraint(op.f(name), condition)


def downgrade() -> None:
    """What was read implicitly stays read, and costs the same."""
    with op.batch_alter_table("usage") as usage:
        for name in _CHECKS:
            usage.drop_constraint(op.f(name), type_="check")
        usage.drop_column("implicit_cache_tokens")
    op.drop_column("projects", "reuses_kv")
