"""Placements, idempotency keys, and an index for hit counts."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "b2c1f4a90d37"
down_revision: str | None = "73e40a00646e"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "placements",
        sa.Column("cache_id", sa.String(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("tier", sa.String(length=20), nullable=False),
        sa.CheckConstraint("tier IN ('GPU', 'RAM')", name=op.f("ck_placements_tier_known")),
        sa.ForeignKeyConstraint(["cache_id"], ["caches.id"], name="fk_placements_cache_id_caches"),
        sa.PrimaryKeyConstraint("cache_id", "incarnation", name="pk_placements"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_digest", sa.LargeBinary(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("cache_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("length(key_digest) = 32", name=op.f("ck_idempotency_keys_key_digest_size")),
        sa.CheckConstraint("length(body_digest) = 32", name=op.f("ck_idempotency_keys_body_digest_size")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_idempotency_keys_project_id_projects"
        ),
        sa.PrimaryKeyConstraint("project_id", "key_digest", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_index("ix_usage_cache_id_kind_state", "usage", ["cache_id", "kind", "state"])


def downgrade() -> None:
    op.drop_index("ix_usage_cache_id_kind_state", "usage")
    op.drop_table("idempotency_keys")
    op.drop_table("placements")
