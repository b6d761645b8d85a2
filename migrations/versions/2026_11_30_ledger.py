"""The ledger: entries, their hours, billing periods; prices with an end and of one project; how far storage is posted."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "c41f7a2d9e06"
down_revision: str | None = "5e0d9a3c7b18"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_UNPOSTED = sa.text("state = 'FINAL' AND NOT is_posted")
_ENTRY_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_CHARGE = "kind IN ('USAGE', 'CORRECTION')"
# What the database refuses, whoever asks: (table, operation, condition).
_FROZEN = (
    ("ledger_entries", "UPDATE", "TRUE"),
    ("ledger_entries", "DELETE", "TRUE"),
    ("billing_periods", "UPDATE", "OLD.state = 'CLOSED'"),
    ("billing_periods", "DELETE", "OLD.state = 'CLOSED'"),
)


def upgrade() -> None:
    _extend_prices()
    with op.batch_alter_table("usage") as usage:
        usage.add_column(sa.Column("is_posted", sa.Boolean(), server_default=sa.false(), nullable=False))
        usage.create_check_constraint(op.f("ck_usage_posted_when_final"), "NOT is_posted OR state = 'FINAL'")
    op.create_index("ix_usage_unposted", "usage", ["id"], sqlite_where=_UNPOSTED, postgresql_where=_UNPOSTED)
    op.drop_index("ix_usage_cache_id_kind_state", "usage")
    op.create_index(
        "ix_usage_cache_id_kind_state_created_at", "usage", ["cache_id", "kind", "state", "created_at"]
    )
    _extend_segments()
    _create_ledger()
    _freeze()


def downgrade() -> None:
    """Charges are gone, and derived anew from usage and segments on the way up.

    What no other table tells is lost for good: corrections, grants and what they paid, and that months were closed.
    """
    for table in ("ledger_watermark", "ledger_hours", "ledger_entries", "billing_periods"):
        op.drop_table(table)
    if _is_postgresql():
        op.execute("DROP FUNCTION headstart_refuse()")
    op.drop_index("ix_storage_segments_accrued_until_ends_at", "storage_segments")
    with op.batch_alter_table("storage_segments") as segments:
        segments.drop_constraint(op.f("fk_storage_segments_key_id_api_keys"), type_="foreignkey")
        segments.drop_constraint(op.f("ck_storage_segments_accrued_within"), type_="check")
        segments.drop_column("key_id")
        segments.drop_column("accrued_until")
    op.drop_index("ix_usage_unposted", "usage")
    op.drop_index("ix_usage_cache_id_kind_state_created_at", "usage")
    op.create_index("ix_usage_cache_id_kind_state", "usage", ["cache_id", "kind", "state"])
    with op.batch_alter_table("usage") as usage:
        usage.drop_constraint(op.f("ck_usage_posted_when_final"), type_="check")
        usage.drop_column("is_posted")
    _cut_prices()


def _extend_prices() -> None:
    with op.batch_alter_table("prices") as prices:
        prices.add_column(sa.Column("project_id", sa.String(), server_default="*", nullable=False))
        prices.add_column(sa.Column("effective_to", sa.DateTime(timezone=True), nullable=True))
        prices.drop_constraint(op.f("uq_prices_model_meter_effective_from"), type_="unique")
        prices.create_unique_constraint(
            op.f("uq_prices_project_id_model_meter_effective_from"),
            ["project_id", "model", "meter", "effective_from"],
        )
        prices.create_check_constraint(
            op.f("ck_prices_effective_to_after_from"),
            "effective_to IS NULL OR effective_to > effective_from",
        )
    # Each price held until the next of its model and meter; now it says so.
    op.execute(
        "UPDATE prices SET effective_to = (SELECT MIN(later.effective_from) FROM prices AS later "
        "WHERE later.model = prices.model AND later.meter = prices.meter "
        "AND later.effective_from > prices.effective_from)"
    )
    # What was read without a cache being named cost what any read did; now it is a meter of its own.
    op.execute(
        "INSERT INTO prices (project_id, model, meter, nano_usd_per_million, effective_from, effective_to) "
        "SELECT project_id, model, 'implicit_cache_read_tokens', nano_usd_per_million, effective_from, effective_to "
        "FROM prices WHERE meter = 'cache_read_tokens'"
    )
    if _is_postgresql():
        op.execute("CREATE EXTENSION IF NOT EXISTS btree_gist")  # equality of texts beside overlap of ranges
        op.execute(
            "ALTER TABLE prices ADD CONSTRAINT ex_prices_no_overlap EXCLUDE USING gist (project_id WITH =, model WITH =, "
            "meter WITH =, tstzrange(effective_from, effective_to) WITH &&)"
        )


def _cut_prices() -> None:
    """Prices of one project, and of what is read implicitly, have no place in the older tables."""
    if _is_postgresql():
        op.execute("ALTER TABLE prices DROP CONSTRAINT ex_prices_no_overlap")
    op.execute("DELETE FROM prices WHERE project_id <> '*' OR meter = 'implicit_cache_read_tokens'")
    with op.batch_alter_table("prices") as prices:
        prices.drop_constraint(op.f("ck_prices_effective_to_after_from"), type_="check")
        prices.drop_constraint(op.f("uq_prices_project_id_model_meter_effective_from"), type_="unique")
        prices.create_unique_constraint(
            op.f("uq_prices_model_meter_effective_from"), ["model", "meter", "effective_from"]
        )
        prices.drop_column("effective_to")
        prices.drop_column("project_id")


def _extend_segments() -> None:
    op.add_column("storage_segments", sa.Column("key_id", sa.String(), nullable=True))
    op.add_column("storage_segments", sa.Column("accrued_until", sa.DateTime(timezone=True), nullable=True))
    op.execute(
        "UPDATE storage_segments SET accrued_until = started_at, "
        "key_id = (SELECT caches.key_id FROM caches WHERE caches.id = storage_segments.cache_id)"
    )
    with op.batch_alter_table("storage_segments") as segments:
        segments.alter_column("key_id", existing_type=sa.String(), nullable=False)
        segments.alter_column("accrued_until", existing_type=sa.DateTime(timezone=True), nullable=False)
        segments.create_foreign_key("fk_storage_segments_key_id_api_keys", "api_keys", ["key_id"], ["id"])
        segments.create_check_constraint(
            op.f("ck_storage_segments_accrued_within"),
            "accrued_until >= started_at AND accrued_until <= ends_at",
        )
    op.create_index(
        "ix_storage_segments_accrued_until_ends_at", "storage_segments", ["accrued_until", "ends_at"]
    )


def _create_ledger() -> None:
    op.create_table(
        "billing_periods",
        sa.Column("month", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("amount_nano_usd", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('OPEN', 'CLOSED')", name=op.f("ck_billing_periods_state_known")),
        sa.CheckConstraint("length(month) = 7", name=op.f("ck_billing_periods_month_form")),
        sa.CheckConstraint(
            "(closed_at IS NULL) = (state = 'OPEN')", name=op.f("ck_billing_periods_closed_at_when_closed")
        ),
        sa.CheckConstraint(
            "(amount_nano_usd IS NULL) = (state = 'OPEN')", name=op.f("ck_billing_periods_amount_when_closed")
        ),
        sa.PrimaryKeyConstraint("month", name="pk_billing_periods"),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("id", _ENTRY_ID, autoincrement=True, nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("dedupe_key", sa.String(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("debit", sa.String(length=20), nullable=False),
        sa.Column("credit", sa.String(length=20), nullable=False),
        sa.Column("meter", sa.String(), nullable=True),
        sa.Column("price_id", sa.Integer(), nullable=True),
        sa.Column("corrects_id", _ENTRY_ID, nullable=True),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.Column("cache_id", sa.String(), nullable=True),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period", sa.String(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("amount_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("without_cache_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("posted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("note", sa.String(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('USAGE', 'CORRECTION', 'GRANT', 'CREDIT_USE')",
            name=op.f("ck_ledger_entries_kind_known"),
        ),
        sa.CheckConstraint(
            f"({_CHARGE} AND debit = 'RECEIVABLE' AND credit = 'REVENUE') OR "
            "(kind = 'GRANT' AND debit = 'GRANTED' AND credit = 'CREDIT') OR "
            "(kind = 'CREDIT_USE' AND debit = 'CREDIT' AND credit = 'RECEIVABLE')",
            name=op.f("ck_ledger_entries_accounts_by_kind"),
        ),
        sa.CheckConstraint(
            f"({_CHARGE}) = (meter IS NOT NULL) AND ({_CHARGE}) = (price_id IS NOT NULL) AND "
            f"({_CHARGE}) = (key_id IS NOT NULL) AND ({_CHARGE}) = (model IS NOT NULL)",
            name=op.f("ck_ledger_entries_charge_is_metered"),
        ),
        sa.CheckConstraint(
            "corrects_id IS NULL OR kind IN ('CORRECTION', 'CREDIT_USE')",
            name=op.f("ck_ledger_entries_corrects_when_correction"),
        ),
        sa.CheckConstraint(
            "corrects_id IS NOT NULL OR (quantity >= 0 AND amount_nano_usd >= 0 AND without_cache_nano_usd >= 0)",
            name=op.f("ck_ledger_entries_negative_when_correcting"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_ledger_entries_project_id_projects"
        ),
        sa.ForeignKeyConstraint(["price_id"], ["prices.id"], name="fk_ledger_entries_price_id_prices"),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_ledger_entries_key_id_api_keys"),
        sa.ForeignKeyConstraint(
            ["project_id", "cache_id"],
            ["caches.project_id", "caches.id"],
            name="fk_ledger_entries_project_id_cache_id_caches",
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "corrects_id"],
            ["ledger_entries.project_id", "ledger_entries.id"],
            name="fk_ledger_entries_project_id_corrects_id_ledger_entries",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_entries"),
        sa.UniqueConstraint("project_id", "dedupe_key", name="uq_ledger_entries_project_id_dedupe_key"),
        sa.UniqueConstraint("project_id", "id", name="uq_ledger_entries_project_id_id"),
    )
    op.create_index("ix_ledger_entries_project_id_hour", "ledger_entries", ["project_id", "hour"])
    op.create_index("ix_ledger_entries_period_project_id", "ledger_entries", ["period", "project_id"])
    op.create_table(
        "ledger_hours",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("cache_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("meter", sa.String(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("amount_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("without_cache_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("entry_count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hour", "project_id", "key_id", "cache_id", "model", "meter", name="pk_ledger_hours"
        ),
    )
    op.create_index("ix_ledger_hours_project_id_hour", "ledger_hours", ["project_id", "hour"])
    op.create_table(
        "ledger_watermark",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_watermark_single_row")),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_watermark"),
    )


def _freeze() -> None:
    if _is_postgresql():
        op.execute(
            "CREATE FUNCTION headstart_refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'what is on the books stays as it is: %', TG_TABLE_NAME; END $$"
        )
    for table, operation, condition in _FROZEN:
        name = f"{table}_refuse_{operation.lower()}"
        if _is_postgresql():
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {operation} ON {table} FOR EACH ROW WHEN ({condition}) "
                "EXECUTE FUNCTION headstart_refuse()"
            )
        else:
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {operation} ON {table} WHEN {condition} "
                f"BEGIN SELECT RAISE(ABORT, 'what is on the books stays as it is: {table}'); END"
            )
    if _is_postgresql():
        for table in ("ledger_entries", "billing_periods"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_truncate BEFORE TRUNCATE ON {table} "
                "EXECUTE FUNCTION headstart_refuse()"
            )


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
