"""The sample in docs/ is what its command makes: the same bytes, out of a month lived through anew."""

import pytest
from sample_month import END
from sample_statement import SAMPLE, sample_page

from bench.database import clear
from models.session import Database
from tests.billing.rows import faults


@pytest.fixture
def database(migrated_sqlite: Database) -> Database:
    clear(migrated_sqlite)
    return migrated_sqlite


@pytest.mark.long
def test_the_sample_is_current_and_its_books_agree(database: Database) -> None:
    page = sample_page(database)
    assert page == SAMPLE.read_text(encoding="utf-8"), "run .venv/bin/python scripts/sample_statement.py"
    assert faults(database, END) == []
