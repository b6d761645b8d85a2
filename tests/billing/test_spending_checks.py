"""Where limits, holds and credit are right nothing is found; a single changed figure anywhere is."""

import pytest
from sqlalchemy import text

from billing.corrections import correct
from billing.credit import grant, set_prepaid
from billing.limits import set_limit
from billing.usage import finalise
from models.ledger_entry import find_entries
from models.session import Database
from tests.billing.lawless import lawless, missed
from tests.billing.rows import (
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    faults,
    generate,
    key_of,
    reserve,
)

NOW = after(60)


@pytest.fixture
def busy(database: Database) -> Database:
    """A project with two limits and credit that it must have, in which something was spent, runs and lives."""
    with database.write() as session:
        add_prices(session, book())
        project = add_project(session, "p")
        add_cache(session, project, "c", tokens=1000, end=after(3600))
        grant(session, project, 10**9, "first", T0)
        set_prepaid(session, project, is_prepaid=True)
        for key in (None, key_of(project)):
            set_limit(session, project, key, hard_nano_usd=10**10, soft_nano_usd=None, now=T0)
        generate(session, project, "done", prompt=20, output=0)
        reserve(session, project, "runs", prompt=30)
        reserve(session, project, "late", prompt=7)
        assert finalise(session, "late", 1, 0, after(31 * 86_400), "STOP")
        generate(session, project, "wrong", prompt=20, output=0)
        (wrong,) = find_entries(session, project, ["wrong:input_tokens"])
        correct(session, wrong.id, 10, "half", after(50))
    return database


def test_finds_nothing_where_nothing_is_wrong(busy: Database) -> None:
    with busy.read() as session:
        assert session.scalars(
            text("SELECT limit_month FROM ledger_entries WHERE dedupe_key LIKE 'late%'")
        ).all() == ["2026-03"]
        assert session.scalars(text("SELECT count(*) FROM holds")).one() == 2
    assert faults(busy, NOW) == []


TAMPERING = [
    ("UPDATE limit_months SET held_nano_usd = held_nano_usd + 1 WHERE key_id = ''", "held_is_its_holds"),
    ("UPDATE limit_months SET held_nano_usd = held_nano_usd - 1 WHERE key_id <> ''", "held_is_its_holds"),
    ("UPDATE holds SET amount_nano_usd = amount_nano_usd + 1 WHERE id = 'runs'", "held_is_its_holds"),
    ("UPDATE holds SET month = '2026-04' WHERE id = 'runs'", "held_is_its_holds"),
    ("DELETE FROM holds WHERE id = 'runs'", "held_is_its_holds: credit"),
    ("UPDATE credits SET held_nano_usd = held_nano_usd + 1", "held_is_its_holds: credit"),
    ("UPDATE limit_months SET spent_nano_usd = spent_nano_usd + 1 WHERE key_id = ''", "spent_is_charged"),
    ("UPDATE limit_months SET spent_nano_usd = 0 WHERE key_id <> ''", "spent_is_charged"),
    ("UPDATE ledger_entries SET limit_month = NULL", "spent_is_charged"),
    (
        "UPDATE usage SET state = 'VOID', occurred_at = created_at WHERE id = 'runs'",
        "holds_have_a_reason",
    ),
    ("UPDATE holds SET id = 'nobody' WHERE id = 'runs'", "holds_have_a_reason"),
    ("UPDATE holds SET cache_id = NULL WHERE cache_id IS NOT NULL", "holds_have_a_reason"),
    ("UPDATE storage_segments SET accrued_until = ends_at", "holds_have_a_reason"),
    ("DELETE FROM limit_months; DELETE FROM limits; DELETE FROM credits", "holds_have_a_reason"),
    ("UPDATE credits SET granted_nano_usd = granted_nano_usd + 1", "credit_is_its_entries"),
    ("UPDATE credits SET used_nano_usd = used_nano_usd - 1", "credit_is_its_entries"),
    ("DELETE FROM credits", "credit_is_its_entries"),
    ("DELETE FROM ledger_entries WHERE kind IN ('GRANT', 'CREDIT_USE')", "credit_is_its_entries"),
    ("UPDATE ledger_entries SET amount_nano_usd = 2001 WHERE kind = 'CREDIT_USE'", "credit_pays_charges"),
    (
        "UPDATE ledger_entries SET dedupe_key = 'credit:x' WHERE dedupe_key LIKE 'credit:done%'",
        "credit_pays_charges",
    ),
    (
        "UPDATE ledger_entries SET period = '2026-03' WHERE dedupe_key LIKE 'credit:late%'",
        "credit_pays_charges",
    ),
    (
        "UPDATE ledger_entries SET hour = '2026-03-01 13:00:00.000000+00:00' WHERE dedupe_key LIKE 'credit:done%'",
        "credit_pays_charges",
    ),
    (
        "UPDATE ledger_entries SET dedupe_key = 'x' || dedupe_key WHERE kind = 'CREDIT_USE'",
        "credit_pays_charges",
    ),
    (
        "UPDATE ledger_entries SET amount_nano_usd = amount_nano_usd - 1 WHERE dedupe_key LIKE 'credit-back:%'",
        "credit_pays_charges",
    ),
    (
        "UPDATE ledger_entries SET amount_nano_usd = 0 WHERE dedupe_key LIKE 'credit-back:%'",
        "credit_pays_charges",
    ),
    (
        "UPDATE ledger_entries SET dedupe_key = 'credit-back:x' WHERE dedupe_key LIKE 'credit-back:%'",
        "credit_pays_charges",
    ),
    (
        "UPDATE ledger_entries SET amount_nano_usd = amount_nano_usd - 1 WHERE dedupe_key LIKE 'correction:%'",
        "corrections_are_exact",
    ),
]


def test_finds_every_figure_that_was_changed(busy: Database) -> None:
    with lawless(busy) as session:
        assert missed(session, TAMPERING, NOW) == []
