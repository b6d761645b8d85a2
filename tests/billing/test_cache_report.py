"""Which caches pay: what each has cost, what its hits have saved, and how many it takes."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from billing.cache_report import SUBJECTS, CacheFigures, CacheReport, cache_figures, cache_report
from billing.cache_report_json import cache_report_json
from billing.corrections import correct
from billing.meters import Meter
from billing.periods import Period
from billing.report import Query
from models.ledger_entry import list_entries
from models.session import Database
from tests.billing.rows import (
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    bring_up_to_date,
    generate,
    joined,
    write,
)

NOW = T0 + timedelta(hours=5)
PERIOD = Period(T0, NOW)


@pytest.fixture
def project(database: Database) -> str:
    """Caches of 1,000 tokens: kept for four hours and hit 80 times, for one and hit twice, for one and never."""
    with database.write() as session:
        add_prices(session, book())
        project = add_project(session, "p")
        for cache_id, hours, hits in (("busy", 4, 80), ("idle", 1, 2), ("unused", 1, 0)):
            add_cache(session, project, cache_id, tokens=1000, end=after(hours * 3600))
            write(session, project, cache_id, tokens=1000)
            for number in range(hits):
                generate(
                    session,
                    project,
                    f"{cache_id}{number}",
                    prompt=1100,
                    cached=1000,
                    implicit=64,
                    output=1,
                    cache_id=cache_id,
                    at=after(number),
                )
        generate(session, project, "without", prompt=1100, output=1)
        return project


def made(
    database: Database, *, period: Period = PERIOD, project_id: str | None = None, now: datetime = NOW
) -> tuple[CacheReport, list[CacheFigures]]:
    with database.read() as session:
        report = cache_report(session, Query(period, project_id, SUBJECTS, zone=UTC), now)
        return report, list(cache_figures(session, report.lines, now))


def test_the_greatest_loss_comes_first_and_what_was_spent_and_saved_is_told_apart(
    database: Database, project: str
) -> None:
    report, figures = made(database)
    lines = {
        line.cache_id: (line.cost_nano_usd, line.hits_saved_nano_usd, line.net_nano_usd)
        for line in report.lines
    }
    assert lines == {
        "unused": (1_100_000, 0, -1_100_000),
        "idle": (1_100_000, 180_000, -920_000),
        "busy": (4_100_000, 7_200_000, 3_100_000),
    }
    assert [*lines] == ["unused", "idle", "busy"]
    assert [line.cache_id for line in report.losing] == ["unused", "idle"]
    assert [each.line for each in figures] == report.lines
    assert [(each.model, each.token_count, each.kept_seconds) for each in figures] == [
        ("tiny", 1000, 3600),
        ("tiny", 1000, 3600),
        ("tiny", 1000, 4 * 3600),
    ]
    assert [each.line.sums.hits for each in figures] == [0, 2, 80]
    assert [each.hits_per_hour for each in figures] == [0, 2, 20]
    assert {each.hits_per_hour_to_keep for each in figures} == {Fraction(100, 9)}


def test_amounts_are_those_of_the_report_whether_posted_or_not(database: Database, project: str) -> None:
    now = after(1800.5)
    before, _ = made(database, now=now)
    bring_up_to_date(database, after(3600))
    after_posting, _ = made(database, now=now)
    assert sum(line.sums.provisional_nano_usd for line in before.lines) == 3 * 500_000
    assert [line.cost_nano_usd for line in before.lines] == [600_000] * 3
    assert [line.cost_nano_usd for line in after_posting.lines] == [
        1_100_000
    ] * 3  # posted since, to the whole hour
    group = after_posting.whole.groups[project, "idle"]
    idle = next(line for line in after_posting.lines if line.cache_id == "idle")
    assert idle.sums is group
    # What was read implicitly is no merit of the cache.
    implicit = group.lines[Meter.IMPLICIT_CACHE_READ_TOKENS]
    assert (
        idle.net_nano_usd == group.saved_nano_usd - implicit.without_cache_nano_usd + implicit.amount_nano_usd
    )


def test_a_period_holds_what_falls_into_it(database: Database, project: str) -> None:
    _, figures = made(database, period=Period(after(2 * 3600), after(3 * 3600)))
    (busy,) = figures
    assert (busy.line.cache_id, busy.kept_seconds, busy.line.sums.hits) == ("busy", 3600, 0)
    assert busy.line.cost_nano_usd == 1_000_000
    assert made(database, period=Period(after(-3600), T0))[0].lines == []


def test_a_cache_that_lived_no_second_has_no_rate(database: Database, project: str) -> None:
    with database.write() as session:
        add_cache(session, project, "short", tokens=10, start=after(0.25), end=after(0.75))
        write(session, project, "short", tokens=10, at=after(0.25))
    _, figures = made(database)
    short = next(each for each in figures if each.line.cache_id == "short")
    assert (short.kept_seconds, short.hits_per_hour, short.line.cost_nano_usd) == (0, None, 1_000)


def test_one_project_sees_its_own(database: Database, project: str) -> None:
    with database.write() as session:
        other = add_project(session, "q")
        add_cache(session, other, "theirs")
    assert {line.project_id for line in made(database)[0].lines} == {project, other}
    assert [line.cache_id for line in made(database, project_id=other)[0].lines] == ["theirs"]


def test_what_it_takes_is_told_at_the_prices_of_now(database: Database, project: str) -> None:
    with database.write() as session:
        dear = book({Meter.CACHE_STORAGE_TOKEN_SECONDS: 4_500_000_000}, since=after(4 * 3600))
        vain = book({Meter.CACHE_READ_TOKENS: 100_000_000}, since=after(9 * 3600))
        add_prices(session, joined(book(), dear, vain))
    assert {each.hits_per_hour_to_keep for each in made(database)[1]} == {Fraction(50)}
    assert {each.hits_per_hour_to_keep for each in made(database, now=after(9 * 3600))[1]} == {None}


def test_a_correction_counts(database: Database, project: str) -> None:
    with database.write() as session:
        (entry,) = [
            each
            for each in list_entries(session, project, 0, 1000)
            if each.dedupe_key.startswith("write:idle")
        ]
        correct(session, entry.id, 0, "goodwill", NOW)
    assert (
        next(line for line in made(database)[0].lines if line.cache_id == "idle").cost_nano_usd == 1_000_000
    )


def test_as_json(database: Database, project: str) -> None:
    report, figures = made(database)
    shown = cache_report_json(report, figures[1:2])
    (idle,) = shown.pop("caches")
    assert shown == {
        "start": "2026-03-01T12:00:00.000000Z",
        "end": "2026-03-01T17:00:00.000000Z",
        "asOf": "2026-03-01T17:00:00.000000Z",
        "timeZone": "UTC",
        "notes": report.whole.notes,
        "costNanoUsd": 6_300_000,
        "hitsSavedNanoUsd": 7_380_000,
        "netNanoUsd": 1_080_000,
        "cacheCount": 3,
        "losingCacheCount": 2,
    }
    amounts = {line["meter"]: line["amountNanoUsd"] for line in idle.pop("meters")}
    assert amounts == {
        "cache_write_tokens": 100_000,
        "cache_storage_token_seconds": 1_000_000,
        "cache_read_tokens": 20_000,
        "implicit_cache_read_tokens": 1_280,
        "input_tokens": 7_200,
        "output_tokens": 800,
    }
    assert idle == {
        "project": project,
        "cache": "idle",
        "name": "cachedContents/idle",
        "model": "tiny",
        "tokenCount": 1000,
        "keptSeconds": 3600,
        "hits": 2,
        "hitsPerHour": 2.0,
        "breakEvenHitsPerHour": 11.1111,
        "costNanoUsd": 1_100_000,
        "hitsSavedNanoUsd": 180_000,
        "netNanoUsd": -920_000,
        "costsMoreThanItSaves": True,
        "provisionalNanoUsd": 1_000_000,
    }
