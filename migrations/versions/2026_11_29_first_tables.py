"""The first tables: projects, API keys, caches, usage, storage segments, prices."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "73e40a00646e"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "prices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("meter", sa.String(), nullable=False),
        sa.Column("nano_usd_per_million", sa.BigInteger(), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "nano_usd_per_million >= 0", name=op.f("ck_prices_nano_usd_per_million_not_negative")
        ),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
        sa.UniqueConstraint("model", "meter", "effective_from", name="uq_prices_model_meter_effective_from"),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("name", name="uq_projects_name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("secret_mac", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("length(secret_mac) = 32", name=op.f("ck_api_keys_secret_mac_size")),
        sa.CheckConstraint(
            "revoked_at IS NULL OR revoked_at >= created_at", name=op.f("ck_api_keys_revoked_after_created")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_api_keys_project_id_projects"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("secret_mac", name="uq_api_keys_secret_mac"),
    )
    op.create_index("ix_api_keys_project_id", "api_keys", ["project_id"])

    op.create_table(
        "caches",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("display_name", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("fencing_token", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expire_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("activated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_reason", sa.String(length=20), nullable=True),
        sa.Column("failure", sa.String(), nullable=True),
        sa.Column("prefix_text", sa.Text(), nullable=True),
        sa.Column("messages", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("token_ids", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint(
            "(activated_at IS NULL) = (state IN ('PENDING', 'FAILED'))",
            name=op.f("ck_caches_activated_by_state"),
        ),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (state IN ('PENDING', 'ACTIVE'))", name=op.f("ck_caches_ended_by_state")
        ),
        sa.CheckConstraint(
            "(failure IS NOT NULL) = (state = 'FAILED')", name=op.f("ck_caches_failure_of_failed")
        ),
        sa.CheckConstraint(
            "(state IN ('PENDING', 'ACTIVE') AND prefix_text IS NOT NULL AND messages IS NOT NULL AND token_ids IS NOT NULL) OR (state NOT IN ('PENDING', 'ACTIVE') AND prefix_text IS NULL AND messages IS NULL AND token_ids IS NULL)",
            name=op.f("ck_caches_content_until_end"),
        ),
        sa.CheckConstraint(
            "end_reason IS NULL OR (state = 'EXPIRED' AND end_reason = 'EXPIRED' AND ended_at = expire_at) OR (state = 'DELETED' AND end_reason IN ('DELETED', 'MODEL_RETIRED')) OR (state = 'FAILED' AND end_reason = 'FAILED')",
            name=op.f("ck_caches_end_reason_by_state"),
        ),
        sa.CheckConstraint(
            "state IN ('PENDING', 'ACTIVE', 'EXPIRED', 'DELETED', 'FAILED')",
            name=op.f("ck_caches_state_known"),
        ),
        sa.CheckConstraint(
            "(end_reason IS NULL) = (ended_at IS NULL)", name=op.f("ck_caches_end_reason_when_ended")
        ),
        sa.CheckConstraint(
            "activated_at IS NULL OR activated_at < expire_at", name=op.f("ck_caches_activated_before_expire")
        ),
        sa.CheckConstraint(
            "activated_at IS NULL OR activated_at >= created_at",
            name=op.f("ck_caches_activated_after_created"),
        ),
        sa.CheckConstraint(
            "ended_at IS NULL OR activated_at IS NULL OR ended_at >= activated_at",
            name=op.f("ck_caches_ended_after_activated"),
        ),
        sa.CheckConstraint(
            "ended_at IS NULL OR ended_at >= created_at", name=op.f("ck_caches_ended_after_created")
        ),
        sa.CheckConstraint("expire_at > created_at", name=op.f("ck_caches_expire_after_created")),
        sa.CheckConstraint("fencing_token >= 1", name=op.f("ck_caches_fencing_token_positive")),
        sa.CheckConstraint("token_count > 0", name=op.f("ck_caches_token_count_positive")),
        sa.CheckConstraint("updated_at >= created_at", name=op.f("ck_caches_updated_after_created")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_caches_key_id_api_keys"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_caches_project_id_projects"),
        sa.PrimaryKeyConstraint("id", name="pk_caches"),
        sa.UniqueConstraint("project_id", "id", name="uq_caches_project_id_id"),
    )
    op.create_index(
        "ix_caches_project_id_state_created_at_id", "caches", ["project_id", "state", "created_at", "id"]
    )
    op.create_index("ix_caches_state_expire_at", "caches", ["state", "expire_at"])

    op.create_table(
        "storage_segments",
        sa.Column("cache_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("ends_at >= started_at", name=op.f("ck_storage_segments_ends_after_started")),
        sa.CheckConstraint("token_count > 0", name=op.f("ck_storage_segments_token_count_positive")),
        sa.ForeignKeyConstraint(
            ["project_id", "cache_id"],
            ["caches.project_id", "caches.id"],
            name="fk_storage_segments_project_id_cache_id_caches",
        ),
        sa.PrimaryKeyConstraint("cache_id", name="pk_storage_segments"),
    )
    op.create_index(
        "ix_storage_segments_project_id_started_at", "storage_segments", ["project_id", "started_at"]
    )

    op.create_table(
        "usage",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("cache_id", sa.String(), nullable=True),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("cache_read_tokens", sa.Integer(), nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_reason", sa.String(), nullable=True),
        sa.CheckConstraint(
            "(kind = 'GENERATE' AND cache_write_tokens = 0) OR (kind = 'CREATE' AND cache_id IS NOT NULL AND cache_write_tokens > 0 AND prompt_tokens = 0 AND output_tokens = 0)",
            name=op.f("ck_usage_kind_meters"),
        ),
        sa.CheckConstraint(
            "(state = 'RESERVED' AND occurred_at IS NULL AND end_reason IS NULL AND output_tokens = 0) OR (state <> 'RESERVED' AND occurred_at IS NOT NULL AND occurred_at >= created_at)",
            name=op.f("ck_usage_state_instants"),
        ),
        sa.CheckConstraint("kind IN ('CREATE', 'GENERATE')", name=op.f("ck_usage_kind_known")),
        sa.CheckConstraint("state IN ('RESERVED', 'FINAL', 'VOID')", name=op.f("ck_usage_state_known")),
        sa.CheckConstraint("attempt >= 1", name=op.f("ck_usage_attempt_positive")),
        sa.CheckConstraint(
            "input_tokens + cache_read_tokens = prompt_tokens", name=op.f("ck_usage_prompt_parts")
        ),
        sa.CheckConstraint(
            "input_tokens >= 0 AND cache_read_tokens >= 0 AND cache_write_tokens >= 0 AND output_tokens >= 0",
            name=op.f("ck_usage_tokens_not_negative"),
        ),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_usage_key_id_api_keys"),
        sa.ForeignKeyConstraint(
            ["project_id", "cache_id"],
            ["caches.project_id", "caches.id"],
            name="fk_usage_project_id_cache_id_caches",
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_usage_project_id_projects"),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
    )
    op.create_index("ix_usage_occurred_at", "usage", ["occurred_at"])
    op.create_index("ix_usage_project_id_occurred_at", "usage", ["project_id", "occurred_at"])
    op.create_index("ix_usage_state_incarnation", "usage", ["state", "incarnation"])


def downgrade() -> None:
    for table in ("usage", "storage_segments", "caches", "api_keys", "projects", "prices"):
        op.drop_table(table)
