import json
import tomllib
from pathlib import Path

import pytest

from billing.price_book import load_price_book
from billing.prices import list_prices, store
from models.session import Database
from tests.billing.rows import T0, add_cache, add_project, after, book, generate, write
from tests.cli.running import done, headstart, refused

PERIOD = ("--start", "2026-03-01T00:00:00Z", "--end", "2026-04-01T00:00:00Z")
CACHE = "c" * 24


@pytest.fixture
def owing(database: Database) -> str:
    """A project that owes for a cache of 4,096 tokens kept for 100 seconds, a hit and a miss; long ago."""
    with database.write() as session:
        store(session, book(), T0)
        project_id = add_project(session, "busy")
        add_cache(session, project_id, CACHE, tokens=4096, end=after(100))
        write(session, project_id, CACHE, tokens=4096)
        generate(session, project_id, "hit", prompt=4110, cached=4096, cache_id=CACHE, output=32)
        generate(session, project_id, "miss", prompt=4110, output=1)
        return project_id


class TestReport:
    def test_shows_amounts_to_the_nano(self, owing: str) -> None:
        text = done("billing", "report", *PERIOD)
        storage = 4096 * 100 * 10**9 // (3600 * 10**6)
        total = 409_600 + storage + 40_960 + 1_400 + 12_800 + 411_000 + 400
        for figure in (
            f"0.000{storage}",
            "0.000409600",
            "0.000040960",
            "0.000001400",
            "0.000411000",
            f"0.000{total}",
        ):
            assert figure in text
        for word in ("busy", CACHE, "(no cache)", "cache_storage_token_seconds", "409,600"):
            assert word in text

    def test_cuts_no_figure_off_in_a_narrow_window(self, owing: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        assert "…" not in done("billing", "report", *PERIOD)

    def test_prints_json_with_integers(self, owing: str) -> None:
        found = json.loads(done("billing", "report", *PERIOD, "--json"))
        assert found["start"] == "2026-03-01T00:00:00.000000Z"
        assert [each["projectId"] for each in found["projects"]] == [owing]
        amounts = [each["amountNanoUsd"] for each in found["meters"]]
        assert all(type(each) is int for each in amounts)
        assert found["amountNanoUsd"] == sum(amounts) > 0

    def test_is_this_month_so_far_when_nothing_is_said(self, owing: str) -> None:
        found = json.loads(done("billing", "report", "--json"))
        assert found["end"] == found["asOf"]
        assert found["start"][8:] == "01T00:00:00.000000Z"

    def test_shows_how_much_of_what_was_read_is_implicit(self, database: Database, owing: str) -> None:
        assert "implicit" not in done("billing", "report", *PERIOD)
        with database.write() as session:
            generate(session, owing, "again", prompt=4110, implicit=4032, output=1)
        lines = done("billing", "report", *PERIOD).splitlines()
        told = [line for line in lines if "implicit" in line]
        assert len(told) == 2
        assert all("4,032" in line for line in told)
        assert "8,128" in lines[lines.index(told[1]) - 1]

    def test_shows_one_project(self, owing: str) -> None:
        for word in ("busy", owing):
            found = json.loads(done("billing", "report", *PERIOD, "--project", word, "--json"))
            assert [each["projectId"] for each in found["projects"]] == [owing]
        found = json.loads(done("billing", "report", *PERIOD, "--project", "default", "--json"))
        assert found["projects"] == []

    def test_refuses_bad_input_by_name(self, owing: str) -> None:
        assert "start must be" in refused("billing", "report", "--start", "2026-03-01")
        assert "end must be" in refused("billing", "report", "--end", "soon")
        assert "nobody" in refused("billing", "report", "--project", "nobody")
        assert "start lies after end" in refused(
            "billing", "report", "--start", "2026-03-02T00:00:00Z", "--end", "2026-03-01T00:00:00Z"
        )

    def test_refuses_what_has_no_price(self, database: Database, owing: str) -> None:
        with database.write() as session:
            generate(session, owing, "other", prompt=1, output=1, model="unpriced")
        assert '"unpriced" has no price' in refused("billing", "report", *PERIOD)


class TestPrices:
    @pytest.fixture
    def example(self, database: Database) -> Database:
        with database.write() as session:
            store(session, load_price_book(None), T0)
        return database

    def test_shows_each_price_in_usd(self, example: Database) -> None:
        text = done("billing", "prices")
        for word in (
            "cache_read_tokens",
            "0.010000000",
            "1.000000000",
            "token-hours",
            "2024-01-01T00:00:00Z",
        ):
            assert word in text

    def test_prints_json(self, example: Database) -> None:
        found = json.loads(done("billing", "prices", "--json"))
        assert len(found) == 5
        assert {
            "model": "*",
            "meter": "output_tokens",
            "effectiveFrom": "2024-01-01T00:00:00Z",
            "nanoUsdPerMillion": 400_000_000,
        } in found

    def test_prints_a_price_book_that_reads_back_the_same(self, example: Database, tmp_path: Path) -> None:
        path = tmp_path / "copy.toml"
        path.write_text(done("billing", "prices", "--toml"))
        assert tomllib.loads(path.read_text())
        with example.read() as session:
            assert list(load_price_book(path).prices) == list_prices(session)

    def test_takes_one_form_at_a_time(self, example: Database) -> None:
        assert headstart("billing", "prices", "--toml", "--json").status == 2
