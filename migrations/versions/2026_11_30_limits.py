"""Limits and their months, holds, credit, quotas of cached tokens; the most that a request may put out."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "a7d30e5b4f18"
down_revision: str | None = "c41f7a2d9e06"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_ELSEWHERE = sa.text("limit_month IS NOT NULL")


def upgrade() -> None:
    # Not in batches: SQLite would drop and remake tables that others refer to, and the ledger's triggers with them.
    op.add_column(
        "usage", sa.Column("most_output_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("ledger_entries", sa.Column("limit_month", sa.String(), nullable=True))
    op.create_index(
        "ix_ledger_entries_limit_month",
        "ledger_entries",
        ["limit_month"],
        sqlite_where=_ELSEWHERE,
        postgresql_where=_ELSEWHERE,
    )
    _create_limits()
    _create_holds()
    _create_credits()
    op.create_table(
        "token_quotas",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("max_cached_tokens", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "max_cached_tokens >= 0", name=op.f("ck_token_quotas_max_cached_tokens_not_negative")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_token_quotas_project_id_projects"),
        sa.PrimaryKeyConstraint("project_id", "model", name="pk_token_quotas"),
    )


def downgrade() -> None:
    """Limits and quotas are gone; grants and what they paid stay in the ledger."""
    for table in ("token_quotas", "credits", "holds", "limit_months", "limits"):
        op.drop_table(table)
    op.drop_index("ix_ledger_entries_limit_month", "ledger_entries")
    op.drop_column("ledger_entries", "limit_month")
    op.drop_column("usage", "most_output_tokens")


def _create_limits() -> None:
    op.create_table(
        "limits",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("hard_nano_usd", sa.BigInteger(), nullable=True),
        sa.Column("soft_nano_usd", sa.BigInteger(), nullable=True),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "hard_nano_usd IS NOT NULL OR soft_nano_usd IS NOT NULL", name=op.f("ck_limits_hard_or_soft")
        ),
        sa.CheckConstraint(
            "hard_nano_usd IS NULL OR hard_nano_usd >= 0", name=op.f("ck_limits_hard_not_negative")
        ),
        sa.CheckConstraint(
            "soft_nano_usd IS NULL OR soft_nano_usd >= 0", name=op.f("ck_limits_soft_not_negative")
        ),
        sa.CheckConstraint(
            "hard_nano_usd IS NULL OR soft_nano_usd IS NULL OR soft_nano_usd <= hard_nano_usd",
            name=op.f("ck_limits_soft_up_to_hard"),
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_limits_project_id_projects"),
        sa.PrimaryKeyConstraint("project_id", "key_id", name="pk_limits"),
    )
    op.create_table(
        "limit_months",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("month", sa.String(), nullable=False),
        sa.Column("spent_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("held_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("soft_told_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("length(month) = 7", name=op.f("ck_limit_months_month_form")),
        sa.CheckConstraint("held_nano_usd >= 0", name=op.f("ck_limit_months_held_not_negative")),
        sa.ForeignKeyConstraint(
            ["project_id", "key_id"],
            ["limits.project_id", "limits.key_id"],
            name="fk_limit_months_project_id_key_id_limits",
        ),
        sa.PrimaryKeyConstraint("project_id", "key_id", "month", name="pk_limit_months"),
    )


def _create_holds() -> None:
    op.create_table(
        "holds",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("cache_id", sa.String(), nullable=True),
        sa.Column("month", sa.String(), nullable=False),
        sa.Column("amount_nano_usd", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_nano_usd > 0", name=op.f("ck_holds_amount_positive")),
        sa.CheckConstraint("length(month) = 7", name=op.f("ck_holds_month_form")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_holds_project_id_projects"),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_holds_key_id_api_keys"),
        sa.ForeignKeyConstraint(
            ["project_id", "cache_id"],
            ["caches.project_id", "caches.id"],
            name="fk_holds_project_id_cache_id_caches",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_holds"),
    )
    op.create_index("ix_holds_project_id_month", "holds", ["project_id", "month"])
    op.create_index("ix_holds_cache_id", "holds", ["cache_id"])


def _create_credits() -> None:
    op.create_table(
        "credits",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("granted_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("used_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("held_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("is_prepaid", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "used_nano_usd >= 0 AND used_nano_usd <= granted_nano_usd",
            name=op.f("ck_credits_used_within_granted"),
        ),
        sa.CheckConstraint("held_nano_usd >= 0", name=op.f("ck_credits_held_not_negative")),
        sa.CheckConstraint("is_prepaid OR held_nano_usd = 0", name=op.f("ck_credits_held_when_prepaid")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_credits_project_id_projects"),
        sa.PrimaryKeyConstraint("project_id", name="pk_credits"),
    )
    # What a newer version granted before the way down is credit again.
    op.execute(
        "INSERT INTO credits (project_id, granted_nano_usd, used_nano_usd, held_nano_usd, is_prepaid) SELECT project_id, "
        "SUM(CASE WHEN kind = 'GRANT' THEN amount_nano_usd ELSE 0 END), "
        "SUM(CASE WHEN kind = 'CREDIT_USE' THEN amount_nano_usd ELSE 0 END), 0, FALSE "
        "FROM ledger_entries WHERE kind IN ('GRANT', 'CREDIT_USE') GROUP BY project_id"
    )
