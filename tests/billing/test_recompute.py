"""The two bills agree on untouched rows, and a single changed figure anywhere makes them disagree."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from billing import charges, rating
from billing.meters import Meter
from billing.prices import store
from billing.recompute import compare, recompute
from billing.report import Report, report
from models.session import Database
from tests.billing.rows import MODEL, T0, add_cache, add_project, after, book, generate, write

PERIOD = {"start": T0, "end": T0 + timedelta(days=1), "now": T0 + timedelta(hours=2)}


@pytest.fixture
def busy(database: Database) -> Database:
    """Two projects with caches and generations whose prices leave remainders."""
    chance = random.Random(7)
    with database.write() as session:
        store(session, book(dict.fromkeys(Meter, 6_999_881)), T0)
        for name in ("p", "q"):
            project_id = add_project(session, name)
            for number in range(5):
                cache_id = f"{name}{number}"
                tokens = chance.randrange(64, 9000)
                start, end = after(chance.random() * 5000), after(5000 + chance.random() * 9000)
                add_cache(session, project_id, cache_id, tokens=tokens, start=start, end=end)
                write(session, project_id, cache_id, tokens=tokens, at=start)
                for request in range(4):
                    generate(
                        session,
                        project_id,
                        f"{cache_id}.{request}",
                        prompt=tokens + 100 + chance.randrange(50),
                        cached=tokens,
                        implicit=chance.randrange(100),
                        cache_id=cache_id,
                        output=chance.randrange(100),
                        at=start,
                    )
            generate(session, project_id, f"{name}.alone", prompt=chance.randrange(500), output=3)
    return database


def differences(database: Database, bill: Report, project_id: str | None = None) -> list[str]:
    with database.read() as session:
        return compare(bill, recompute(session, **PERIOD, project_id=project_id))


def bill_of(database: Database, project_id: str | None = None) -> Report:
    with database.read() as session:
        return report(session, **PERIOD, project_id=project_id)


class TestCompare:
    def test_finds_nothing_where_nothing_is_wrong(self, busy: Database) -> None:
        for project_id in (None, "proj_p", "proj_q"):
            bill = bill_of(busy, project_id)
            assert bill.amount_nano_usd > 0
            assert differences(busy, bill, project_id) == []

    def test_another_projects_recomputation_differs(self, busy: Database) -> None:
        assert differences(busy, bill_of(busy, "proj_p"), "proj_q")

    @pytest.mark.parametrize(
        "tampering",
        [
            "UPDATE usage SET output_tokens = output_tokens + 1 WHERE id = 'p.alone'",
            "UPDATE usage SET cache_write_tokens = cache_write_tokens - 1 WHERE id = 'write:q4'",
            "UPDATE usage SET input_tokens = input_tokens + 1, cache_read_tokens = cache_read_tokens - 1 WHERE id = 'p0.0'",
            "UPDATE usage SET implicit_cache_tokens = implicit_cache_tokens + 1 WHERE id = 'p0.0'",
            "UPDATE usage SET cache_id = 'p1' WHERE id = 'p0.0'",
            "UPDATE usage SET state = 'VOID' WHERE id = 'p.alone'",
            "UPDATE usage SET occurred_at = '2026-03-03 00:00:00.000000' WHERE id = 'p0.0'",
            "DELETE FROM usage WHERE id = 'q.alone'",
            "UPDATE storage_segments SET token_count = token_count + 1 WHERE cache_id = 'p0'",
            "UPDATE storage_segments SET ends_at = started_at WHERE cache_id = 'p0'",
            "DELETE FROM storage_segments WHERE cache_id = 'p0'",
            "UPDATE prices SET nano_usd_per_million = nano_usd_per_million + 1000000 WHERE meter = 'output_tokens'",
        ],
    )
    def test_finds_a_row_that_was_changed_after_the_report(self, busy: Database, tampering: str) -> None:
        bill = bill_of(busy)
        with busy.write() as session:
            session.execute(text(tampering))
        assert differences(busy, bill)

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("token_charge", lambda tokens, price: -(-tokens * price // 10**6)),
            (
                "storage_charge",
                lambda tokens, elapsed, price: -(-tokens * len(elapsed) * price // (3600 * 10**6)),
            ),
        ],
    )
    def test_finds_a_floor_that_became_a_ceiling(
        self, busy: Database, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., int]
    ) -> None:
        assert hasattr(rating, name)
        monkeypatch.setattr(charges, name, wrong)
        found = differences(busy, bill_of(busy))
        assert found
        assert all("nano-USD" in each for each in found)

    def test_finds_storage_that_is_rounded_period_by_period(
        self, busy: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            charges,
            "storage_charge",
            lambda tokens, elapsed, price: tokens * len(elapsed) * price // (3600 * 10**6),
        )
        middle = {**PERIOD, "start": after(5001), "end": after(5002)}
        with busy.read() as session:
            assert compare(
                report(session, **middle, project_id=None), recompute(session, **middle, project_id=None)
            )

    def test_finds_a_changed_figure_on_every_level(self, busy: Database) -> None:
        bill = bill_of(busy)
        project, cache, line = (
            bill.projects[0],
            bill.projects[0].caches[0],
            bill.projects[0].caches[0].lines[0],
        )
        wrong_line = replace(line, amount_nano_usd=line.amount_nano_usd + 1)
        wrong_cache = replace(cache, lines=(wrong_line, *cache.lines[1:]))
        for wrong, about in (
            (replace(bill, amount_nano_usd=bill.amount_nano_usd - 1), "total: sum"),
            (replace(bill, lines=(wrong_line, *bill.lines[1:])), f"{line.meter}: nano-USD"),
            (replace(bill, projects=bill.projects[:1]), "proj_q"),
            (
                replace(bill, projects=(replace(project, amount_nano_usd=0), *bill.projects[1:])),
                "proj_p: sum",
            ),
            (
                replace(
                    bill,
                    projects=(
                        replace(project, caches=(wrong_cache, *project.caches[1:])),
                        *bill.projects[1:],
                    ),
                ),
                f"proj_p / p0 / {line.meter}: nano-USD",
            ),
        ):
            found = differences(busy, wrong)
            assert any(each.startswith(about) for each in found), (about, found)


class TestRecompute:
    def test_refuses_what_has_no_price(self, busy: Database) -> None:
        with busy.write() as session:
            session.execute(text("DELETE FROM prices WHERE meter = 'cache_read_tokens'"))
        with busy.read() as session, pytest.raises(LookupError, match=f"cache_read_tokens for {MODEL}"):
            recompute(session, **PERIOD, project_id=None)
