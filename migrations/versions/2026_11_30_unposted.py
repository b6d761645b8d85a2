"""An index of the storage that is to be posted, one of corrections, and on SQLite no entry in place of another."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "5e0c93b71d42"
down_revision: str | None = "a7d30e5b4f18"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_UNPOSTED = sa.text("accrued_until < ends_at")
_CORRECTS = sa.text("corrects_id IS NOT NULL")


def upgrade() -> None:
    op.drop_index("ix_storage_segments_accrued_until_ends_at", "storage_segments")
    op.create_index(
        "ix_storage_segments_unposted",
        "storage_segments",
        ["accrued_until", "cache_id"],
        sqlite_where=_UNPOSTED,
        postgresql_where=_UNPOSTED,
    )
    op.create_index(
        "ix_ledger_entries_corrects_id",
        "ledger_entries",
        ["corrects_id"],
        sqlite_where=_CORRECTS,
        postgresql_where=_CORRECTS,
    )
    if not _is_postgresql():
        # SQLite's REPLACE tells the triggers of what it removes only on connections that ask for that.
        op.execute(
            "CREATE TRIGGER ledger_entries_refuse_insert BEFORE INSERT ON ledger_entries "
            "WHEN EXISTS (SELECT 1 FROM ledger_entries WHERE id = NEW.id) "
            "BEGIN SELECT RAISE(ABORT, 'what is on the books stays as it is: ledger_entries'); END"
        )


def downgrade() -> None:
    if not _is_postgresql():
        op.execute("DROP TRIGGER ledger_entries_refuse_insert")
    op.drop_index("ix_ledger_entries_corrects_id", "ledger_entries")
    op.drop_index("ix_storage_segments_unposted", "storage_segments")
    op.create_index(
        "ix_storage_segments_accrued_until_ends_at", "storage_segments", ["accrued_until", "ends_at"]
    )


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"
