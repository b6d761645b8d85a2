"""`headstart billing caches`: the same as the API answers, as a table and as JSON."""

import csv
import json
from io import StringIO

import pytest
from pydantic.alias_generators import to_camel

from billing.prices import store
from models.session import Database
from tests.billing.rows import T0, add_cache, add_project, after, book, generate, write
from tests.cli.running import done, refused

CACHES = ("billing", "caches", "--start", "2026-03", "--end", "2026-04")


@pytest.fixture
def projects(database: Database) -> tuple[str, str]:
    """A cache that pays, and one of another project that does not; long ago."""
    with database.write() as session:
        store(session, book(), T0)
        made = add_project(session, "busy"), add_project(session, "idle")
        for project_id, hits in zip(made, (40, 1), strict=True):
            add_cache(session, project_id, f"c_{project_id}", tokens=2000, end=after(5400))
            write(session, project_id, f"c_{project_id}", tokens=2000)
            for number in range(hits):
                used = f"{project_id}{number}"
                generate(
                    session, project_id, used, prompt=2010, cached=2000, cache_id=f"c_{project_id}", output=1
                )
    return made


def test_shows_the_greatest_loss_first(projects: tuple[str, str]) -> None:
    shown = done(*CACHES)
    assert shown.startswith("Caches from 2026-03-01T00:00:00Z to 2026-04-01T00:00:00Z\n")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert [row for row in rows if row[1]] == [
        [
            "idle",
            f"c_{projects[1]}",
            "tiny",
            "2,000",
            "1.50",
            "1",
            "0.6667",
            "11.1111",
            "0.003200000",
            "0.000180000",
            "-0.003020000",
        ],
        [
            "busy",
            f"c_{projects[0]}",
            "tiny",
            "2,000",
            "1.50",
            "40",
            "26.6667",
            "11.1111",
            "0.003200000",
            "0.007200000",
            "0.004000000",
        ],
    ]
    assert "\nCaches that cost more than they saved: 1 of 2, by 0.003020000 USD.\n" in shown


def test_prints_the_json_that_the_api_answers(projects: tuple[str, str]) -> None:
    found = json.loads(done(*CACHES, "--json"))
    assert [each["project"] for each in found["caches"]] == [projects[1], projects[0]]
    assert found["netNanoUsd"] == 980_000
    found = json.loads(done(*CACHES, "--project", "busy", "--json"))
    assert [each["hits"] for each in found["caches"]] == [40]


def test_prints_csv_with_the_figures_of_the_json(projects: tuple[str, str]) -> None:
    rows = list(csv.DictReader(StringIO(done(*CACHES, "--format", "csv"))))
    found = json.loads(done(*CACHES, "--format", "json"))["caches"]
    assert len(rows) == len(found) == 2
    for row, cache in zip(rows, found, strict=True):
        for column, text in row.items():
            value = cache[to_camel(column)]
            assert text == (str(value).lower() if isinstance(value, bool) else str(value))


def test_cuts_no_figure_off_in_a_narrow_window(
    projects: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert "…" not in done(*CACHES)


def test_is_empty_where_there_was_none(projects: tuple[str, str]) -> None:
    assert "cost more than they saved: 0 of 0, by 0.000000000 USD." in done(
        "billing", "caches", "--start", "2027-01", "--end", "2027-02"
    )


def test_refuses_bad_input(projects: tuple[str, str]) -> None:
    assert "Mars" in refused(*CACHES, "--time-zone", "Mars")
    assert "There is no project absent" in refused(*CACHES, "--project", "absent")
