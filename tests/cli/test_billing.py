import csv
import json
import tomllib
from io import StringIO
from pathlib import Path

import pytest
from sqlalchemy import text

from billing.price_book import EXAMPLE_PRICE_BOOK, load_price_book
from billing.prices import list_prices, store
from models.session import Database
from tests.billing.rows import T0, add_cache, add_project, after, book, generate, write
from tests.cli.running import done, headstart, refused

STORAGE = 4096 * 100 * 10**9 // (3600 * 10**6)  # of the cache that is kept below
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
        shown = done("billing", "report", *PERIOD)
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
            assert figure in shown
        for word in ("busy", CACHE, "(no cache)", "cache_storage_token_seconds", "409,600"):
            assert word in shown

    def test_cuts_no_figure_off_in_a_narrow_window(self, owing: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        assert "…" not in done("billing", "report", *PERIOD)

    def test_prints_json_with_integers(self, owing: str) -> None:
        found = json.loads(done("billing", "report", *PERIOD, "--json"))
        assert found["start"] == "2026-03-01T00:00:00.000000Z"
        assert [(each["project"], each["cache"]) for each in found["groups"]] == [
            (owing, None),
            (owing, CACHE),
        ]
        amounts = [each["amountNanoUsd"] for each in found["meters"]]
        assert all(type(each) is int for each in amounts)
        assert found["amountNanoUsd"] == sum(amounts) > 0

    def test_is_this_month_so_far_when_nothing_is_said(self, owing: str) -> None:
        found = json.loads(done("billing", "report", "--json"))
        assert found["end"] == found["asOf"]
        assert found["start"][8:] == "01T00:00:00.000000Z"

    def test_shows_what_was_read_implicitly_apart(self, database: Database, owing: str) -> None:
        assert "implicit" not in done("billing", "report", *PERIOD)
        with database.write() as session:
            generate(session, owing, "again", prompt=4110, implicit=4032, output=1)
        told = [line for line in done("billing", "report", *PERIOD).splitlines() if "implicit" in line]
        assert len(told) == 2
        assert all("4,032" in line for line in told)

    def test_says_what_caching_saved_or_cost(self, owing: str) -> None:
        """Without a cache: 4,110 tokens of input once more. With it: written, kept and read."""
        storage = 4096 * 100 * 10**9 // (3600 * 10**6)
        saved = 4096 * 100 - (409_600 + storage + 40_960)
        assert saved < 0
        assert "1 hit, 99.7% read" in done("billing", "report", *PERIOD)
        assert f"-0.000{-saved} " in done("billing", "report", *PERIOD)
        assert f"Caching cost more than it saved: 0.000{-saved} USD. Hits: 1. Token hit rate: 49.8%." in done(
            "billing", "report", *PERIOD
        )

    def test_groups_by_whatever_is_asked_for(self, owing: str) -> None:
        found = json.loads(done("billing", "report", *PERIOD, "--by", "day,model", "--json"))
        assert [(each["day"], each["model"]) for each in found["groups"]] == [("2026-03-01", "tiny")]
        late = ("--by", "month", "--time-zone", "Pacific/Kiritimati", "--json")
        found = json.loads(done("billing", "report", "--start", "2026-03", "--end", "2026-04", *late))
        assert [each["month"] for each in found["groups"]] == ["2026-03"]
        assert found["start"] == "2026-02-28T10:00:00.000000Z"
        shown = done("billing", "report", *PERIOD, "--by", "")
        assert "busy" not in shown
        assert "cache_write_tokens" in shown

    def test_prints_csv_with_a_line_for_each_group_and_meter(self, owing: str) -> None:
        rows = list(csv.DictReader(StringIO(done("billing", "report", *PERIOD, "--format", "csv"))))
        read = [row for row in rows if row["meter"] == "cache_read_tokens"]
        assert read == [
            {
                "project": owing,
                "cache": CACHE,
                "meter": "cache_read_tokens",
                "unit": "tokens",
                "quantity": "4096",
                "amount_nano_usd": "40960",
                "without_cache_nano_usd": "409600",
                "amount_usd": "0.000040960",
                "provisional_nano_usd": "0",
                "entries": "1",
                "group_hits": "1",
                "group_hit_rate": "0.9966",
                "group_saved_nano_usd": str(409_600 - 40_960 - 409_600 - STORAGE),
            }
        ]
        assert [row["group_hit_rate"] for row in rows if not row["cache"]] == ["0.0", "0.0"]
        (kept,) = [row for row in rows if row["meter"] == "cache_storage_token_seconds"]
        assert (kept["provisional_nano_usd"], kept["entries"]) == (str(STORAGE), "0")  # nobody has posted it
        found = json.loads(done("billing", "report", *PERIOD, "--json"))
        assert sum(int(row["amount_nano_usd"]) for row in rows) == found["amountNanoUsd"]
        assert sum(int(row["provisional_nano_usd"]) for row in rows) == found["provisionalNanoUsd"]

    def test_notes_stand_below_a_table_and_beside_csv(self, owing: str) -> None:
        for command in ("report", "caches"):
            asked = (
                "billing",
                command,
                "--start",
                "2026-03-01",
                "--end",
                "2026-04",
                "--time-zone",
                "Asia/Kolkata",
            )
            told = headstart(*asked)
            assert "an hour counts in the day in which it starts" in told.out.splitlines()[-2]
            assert (told.err, "not posted yet" in told.out.splitlines()[-1]) == ("", True)
            told = headstart(*asked, "--format", "csv")
            assert "Kolkata" not in told.out
            assert told.err.count("\n") == 2
            assert json.loads(done(*asked, "--format", "json"))["notes"] == told.err.splitlines()

    def test_shows_one_project(self, owing: str) -> None:
        for word in ("busy", owing):
            found = json.loads(done("billing", "report", *PERIOD, "--project", word, "--json"))
            assert {each["project"] for each in found["groups"]} == {owing}
        found = json.loads(done("billing", "report", *PERIOD, "--project", "default", "--json"))
        assert found["groups"] == []

    def test_refuses_bad_input_by_name(self, owing: str) -> None:
        assert "start must be" in refused("billing", "report", "--start", "2026-03-01T00:30:00Z")
        assert "end must be" in refused("billing", "report", "--end", "soon")
        assert "nobody" in refused("billing", "report", "--project", "nobody")
        assert "no time zone 'Mars'" in refused("billing", "report", "--time-zone", "Mars")
        assert "groupBy cannot be 'colour'" in refused("billing", "report", "--by", "cache,colour")
        assert "more than one" in refused("billing", "report", "--by", "day,month")
        assert "start lies after end" in refused(
            "billing", "report", "--start", "2026-03-02T00:00:00Z", "--end", "2026-03-01T00:00:00Z"
        )


class TestBooks:
    def test_right_books_are_said_to_be_so(self, owing: str) -> None:
        done("billing", "post")
        assert "to the nano" in done("billing", "verify")
        assert json.loads(done("billing", "verify", "--json")) == {"findings": []}

    def test_what_cannot_be_posted_is_named(self, database: Database, owing: str) -> None:
        with database.write() as session:
            session.execute(text("UPDATE storage_segments SET model = 'unpriced'"))
        ran = headstart("billing", "post")
        assert ran.status == 1
        assert "What could not be posted" in ran.out
        assert "All that is due" not in ran.out

    def test_wrong_books_end_with_a_status_and_say_what_is_wrong(
        self, database: Database, owing: str
    ) -> None:
        done("billing", "post")
        with database.write() as session:
            session.execute(text("UPDATE usage SET output_tokens = output_tokens + 1 WHERE id = 'hit'"))
        ran = headstart("billing", "verify")
        assert ran.status == 1
        assert "output_tokens" in ran.out
        ran = headstart("billing", "verify", "--json")
        assert ran.status == 1
        assert {each["check"] for each in json.loads(ran.out)["findings"]} == {"ledger_is_recomputed"}

    def test_entries_are_listed_and_corrected(self, owing: str) -> None:
        listed = json.loads(done("billing", "entries", "--json"))
        assert [each["dedupeKey"] for each in listed[:2]] == [
            f"write:{CACHE}:cache_write_tokens",
            "hit:cache_read_tokens",
        ]
        assert "cache_write_tokens" in done("billing", "entries", "--cache", f"cachedContents/{CACHE}")
        assert json.loads(done("billing", "entries", "--project", "default", "--json")) == []
        number = str(listed[0]["id"])
        told = done("billing", "correct", number, "--quantity", "0", "--note", "goodwill")
        assert "by -4,096 for -0.000409600 USD" in told
        done("billing", "post")
        assert "to the nano" in done("billing", "verify")
        assert "comes to 0 already" in refused("billing", "correct", number, "--quantity", "0", "--note", "x")
        assert "no charge 999" in refused("billing", "correct", "999", "--quantity", "0", "--note", "x")
        told = done(
            "billing", "correct", str(listed[1]["id"]), "--amount-nano-usd", "5", "--note", "goodwill"
        )
        assert "by 0 for -0.000040955 USD" in told

    def test_what_cannot_be_corrected_is_said_by_name(self, owing: str) -> None:
        number = str(json.loads(done("billing", "entries", "--json"))[0]["id"])
        for amounts in ([], ["--quantity", "1", "--amount-nano-usd", "1"]):
            outcome = headstart("billing", "correct", number, *amounts, "--note", "x")
            assert (outcome.status, "give one of the two" in outcome.err) == (2, True)
        for word in ("quantity", "amount-nano-usd"):
            many = refused("billing", "correct", number, f"--{word}", "9" * 30, "--note", "x")
            assert many.startswith(f"{word.replace('-', '_')} must be from 0")
        assert "note must" in refused("billing", "correct", number, "--quantity", "1", "--note", "\udcff")
        for words in (
            ("correct", "9" * 30, "--quantity", "1", "--note", "x"),
            ("entries", "--after", "9" * 30),
        ):
            outcome = headstart("billing", *words)
            assert (outcome.status, f"{2**63 - 1}" in outcome.err) == (2, True)

    def test_a_month_is_closed(self, owing: str) -> None:
        assert "billing post" in refused("billing", "close", "2026-03")
        done("billing", "post")
        assert "2026-03 is closed at 0.000" in done("billing", "close", "2026-03")
        (period,) = json.loads(done("billing", "periods", "--json"))
        assert (period["month"], period["state"]) == ("2026-03", "CLOSED")
        assert "CLOSED" in done("billing", "periods")
        assert "month must be" in refused("billing", "close", "March")
        assert "can be closed from" in refused("billing", "close", "2999-01")
        assert "before there was any project" in refused("billing", "close", "2026-02")


class TestPrices:
    @pytest.fixture
    def example(self, database: Database) -> Database:
        with database.write() as session:
            store(session, load_price_book(None), T0)
        return database

    def test_shows_each_price_in_usd(self, example: Database) -> None:
        shown = done("billing", "prices", "show")
        for word in (
            "cache_read_tokens",
            "0.010000000",
            "1.000000000",
            "token-hours",
            "2024-01-01T00:00:00Z",
        ):
            assert word in shown

    def test_prints_json(self, example: Database) -> None:
        found = json.loads(done("billing", "prices", "show", "--json"))
        assert len(found) == 6
        assert {
            "project": "*",
            "model": "*",
            "meter": "output_tokens",
            "effectiveFrom": "2024-01-01T00:00:00Z",
            "effectiveTo": None,
            "nanoUsdPerMillion": 400_000_000,
        } in found

    def test_prints_a_price_book_that_reads_back_the_same(self, example: Database, tmp_path: Path) -> None:
        path = tmp_path / "copy.toml"
        path.write_text(done("billing", "prices", "show", "--toml"))
        assert tomllib.loads(path.read_text())
        with example.read() as session:
            assert list(load_price_book(path).prices) == list_prices(session)

    def test_takes_one_form_at_a_time(self, example: Database) -> None:
        assert headstart("billing", "prices", "show", "--toml", "--json").status == 2

    @pytest.fixture
    def changed(self, example: Database, tmp_path: Path) -> Path:
        """The example with another price of output from 2030 on, and one for a project."""
        with example.write() as session:
            add_project(session, "busy")
        path = tmp_path / "book.toml"
        later = 'effective_from = 2030-01-01T00:00:00Z\nmodel = "*"\nmeter = "output_tokens"\n'
        rows = f'[[price]]\n{later}nano_usd_per_million = 7\n[[price]]\nproject = "busy"\n{later}nano_usd_per_million = 5\n'
        path.write_text(EXAMPLE_PRICE_BOOK.read_text() + rows)
        return path

    def test_a_book_is_checked_compared_and_loaded(self, example: Database, changed: Path) -> None:
        assert "8 prices, nothing wrong" in done("billing", "prices", "check", str(changed))
        for command in ("diff", "diff", "load"):
            found = json.loads(done("billing", "prices", command, str(changed), "--json"))
            assert [(each["change"], each["nanoUsdPerMillion"]) for each in found] == [
                ("end moved", 400_000_000),
                ("added", 7),
                ("added", 5),
            ]
        assert "are those of the book" in done("billing", "prices", "load", str(changed))
        assert json.loads(done("billing", "prices", "diff", str(changed), "--json")) == []
        with example.read() as session:
            assert len(list_prices(session)) == 8

    def test_what_may_be_a_slip_is_told_beside_the_prices(self, tmp_path: Path) -> None:
        path = tmp_path / "book.toml"
        path.write_text(EXAMPLE_PRICE_BOOK.read_text().replace(" 400_000_000", " 10_000_000_000_000"))
        outcome = headstart("billing", "prices", "check", str(path))
        assert (outcome.status, outcome.out.splitlines()[0]) == (0, f"{path}: 6 prices, 1 to look at")
        assert "10000.000000000 USD per million. Is that meant?" in outcome.err

    def test_a_book_that_changes_history_is_refused_by_all_but_check(
        self, example: Database, tmp_path: Path
    ) -> None:
        path = tmp_path / "book.toml"
        path.write_text(EXAMPLE_PRICE_BOOK.read_text().replace("400_000_000", "400_000_001"))
        assert done("billing", "prices", "check", str(path))
        for command in ("diff", "load"):
            assert "is in force" in refused("billing", "prices", command, str(path))

    def test_a_wrong_book_is_refused_with_the_row_and_the_remedy(
        self, example: Database, tmp_path: Path
    ) -> None:
        path = tmp_path / "book.toml"
        path.write_text(EXAMPLE_PRICE_BOOK.read_text() * 2)
        for command in ("check", "diff", "load"):
            assert "overlaps price" in refused("billing", "prices", command, str(path))
