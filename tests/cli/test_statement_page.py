"""The page as it is rendered, on the database that many tests share: to make one for each would take most of their time."""

import re
from datetime import UTC, datetime, timedelta
from math import cbrt

import matplotlib as mpl
import pytest

from bench.database import clear
from billing.closing import close_month
from billing.corrections import correct
from billing.meters import Meter
from billing.money import usd
from billing.periods import parse_zone
from billing.prices import store
from billing.report import Sums
from billing.statement import TOP_CACHES, Statement, statement
from cli.billing.statement import words
from cli.billing.statement.drawing import COLOURS, HATCHES
from cli.billing.statement.page import MOST_CORRECTIONS, render
from cli.billing.statement.plots import draw_all
from models.cache import Cache
from models.ledger_entry import list_entries
from models.project import get_project
from models.session import Database
from tests.billing.rows import (
    T0,
    add_cache,
    add_project,
    after,
    book,
    bring_up_to_date,
    generate,
    joined,
    write,
)
from tests.cli.pages import Page

MAY = datetime(2026, 5, 1, tzinfo=UTC)
EVIL = '"><script>alert(1)</script><img src=//evil.example/x onerror=alert(2)> $x^{$ ${{7*7}} 文件 שלום، (مرحبا) 👨\u200d👩\u200d👧 \x07\x1b\u202e'


@pytest.fixture
def database(migrated_sqlite: Database) -> Database:
    clear(migrated_sqlite)
    return migrated_sqlite


@pytest.fixture
def project(database: Database) -> str:
    """A project with a cache that pays, one that does not, and requests without one, in March 2026."""
    dearer_from = after(86_400)
    with database.write() as session:
        store(session, joined(book(), book({Meter.OUTPUT_TOKENS: 10**9}, since=dearer_from)), T0)
        project_id = add_project(session, "busy")
        for name, tokens, seconds in (("used", 90_000, 7200), ("idle", 40_000, 3 * 86_400)):
            add_cache(session, project_id, name, tokens=tokens, end=after(seconds))
            write(session, project_id, name, tokens=tokens)
        for number in range(40):
            at = after(60 + 60 * number)
            generate(
                session,
                project_id,
                f"r{number}",
                prompt=90_050,
                cached=90_000,
                cache_id="used",
                output=9,
                at=at,
            )
        generate(session, project_id, "alone", prompt=100, implicit=64, output=7, at=after(90_000))
        return project_id


def made(
    database: Database, project_id: str, month: str = "2026-03", zone: str | None = None, now: datetime = MAY
) -> Statement:
    with database.read() as session:
        return statement(session, get_project(session, project_id), month, parse_zone(zone), now)


def rename(database: Database, project_id: str, name: str) -> None:
    with database.write() as session:
        get_project(session, project_id).name = name
        for cache_id in ("used", "idle"):
            cache = session.get(Cache, cache_id)
            assert cache is not None
            cache.display_name = name


def tables(made: Statement) -> str:
    """The page without its plots, which take a second to draw."""
    return render(made, [])


def whole(made: Statement) -> str:
    return render(made, draw_all(made))


def minus(nano_usd: int) -> str:
    return usd(nano_usd).replace("-", "−")


def amounts(sums: Sums) -> list[str]:
    figures = sums.amount_nano_usd, sums.without_cache_nano_usd, sums.saved_nano_usd
    return [f"{sums.hits:,}", *map(minus, figures)]


class TestFigures:
    def test_of_meters_are_those_of_the_report(self, database: Database, project: str) -> None:
        found = made(database, project)
        rows = Page(tables(found)).rows("meters")
        for meter, line in found.sums.lines.items():
            (row,) = [each for each in rows if each[0] == words.NAMES[meter]]
            assert row[1].startswith(f"{line.quantity:,} token")
            assert row[3] == usd(line.amount_nano_usd)
        assert rows[-1] == ["Charges of March 2026", "", "", usd(found.sums.amount_nano_usd)]

    def test_a_meter_with_two_prices_has_a_line_for_each(self, database: Database, project: str) -> None:
        rows = Page(tables(made(database, project))).rows("meters")
        assert [
            "tiny, until 2026-03-02 12:00 UTC",
            "360",
            "0.40 USD per million tokens",
            "0.000144000",
        ] in rows
        assert ["tiny, from 2026-03-02 12:00 UTC", "7", "1.00 USD per million tokens", "0.000007000"] in rows
        assert ["Output", "367 tokens", "as follows", "0.000151000"] in rows
        assert [row[2] for row in rows if row[0] == "Kept in caches"] == ["1.00 USD per million token-hours"]

    def test_of_caches_are_the_whole_bill(self, database: Database, project: str) -> None:
        found = made(database, project)
        rows = Page(tables(found)).rows("caches")
        assert [row[0] for row in rows] == ["1", "2", "", ""]
        assert rows[0][1] == "cachedContents/idlecosts more than it saves"
        assert rows[1][1] == "cachedContents/used"
        assert rows[2][1] == "Requests without a cache"
        sums = found.caches["idle"], found.caches["used"], found.without_cache, found.sums
        assert [row[2:] for row in rows] == [amounts(each) for each in sums]

    def test_of_days_are_all_days(self, database: Database, project: str) -> None:
        found = made(database, project)
        rows = Page(tables(found)).rows("days")
        assert [row[0] for row in (rows[0], rows[-2], rows[-1])] == [
            "Sun 2026-03-01",
            "Tue 2026-03-31",
            "All",
        ]
        assert [row[1:] for row in rows] == [amounts(each) for each in (*found.days.values(), found.sums)]

    def test_caches_beyond_the_first_are_added_up(self, database: Database, project: str) -> None:
        with database.write() as session:
            for number in range(TOP_CACHES):
                add_cache(session, project, f"more{number}", tokens=number + 1, end=after(3600))
        found = made(database, project)
        rows = Page(tables(found)).rows("caches")
        assert [row[1] for row in rows[TOP_CACHES:]] == ["2 other caches", "Requests without a cache", "All"]
        assert rows[TOP_CACHES][3] == usd(1_000_000_000 // 10**6 + 2_000_000_000 // 10**6)

    def test_storage_that_is_not_posted_is_noted(self, database: Database, project: str) -> None:
        page = Page(tables(made(database, project, now=after(3600 + 60))))
        assert "nano-USD are storage that is not posted yet" in "".join(page.text)

    def test_what_is_billed_elsewhere_leads_from_charged_to_billed(
        self, database: Database, project: str
    ) -> None:
        bring_up_to_date(database, MAY)
        with database.write() as session:
            close_month(session, "2026-03", MAY)
            (entry,) = [
                each
                for each in list_entries(session, project, 0, 999)
                if each.dedupe_key == "alone:output_tokens"
            ]
            made_by = correct(session, entry.id, 2, "An answer <b>too many</b>", MAY + timedelta(hours=1))
        march, may = (
            made(database, project, month, now=MAY + timedelta(days=1)) for month in ("2026-03", "2026-05")
        )
        assert march.billed is not None
        rows = Page(tables(march)).rows("meters")
        assert rows[-2:] == [
            ["of which billed in another month, because 2026-03 was closed", "0.000005000"],
            ["Billed in 2026-03", usd(march.sums.amount_nano_usd + 5_000)],
        ]
        page = Page(tables(may))
        assert page.rows("meters")[-2:] == [
            ["for hours of months that were closed, billed in 2026-05", "−0.000005000"],
            ["Billed in 2026-05", "−0.000005000"],
        ]
        for each in (Page(tables(march)), page):
            (row,) = each.rows("corrections")
            assert row[0] == f"{made_by.id}, of {entry.id}"
            assert row[2].endswith("An answer <b>too many</b>")
            assert row[3:] == ["2026-05", "−5", "−0.000005000"]
        assert "2026-03 closed at 2026-05-01 00:00 UTC" in "".join(Page(tables(march)).text)

    def test_many_corrections_are_added_up(self, database: Database, project: str) -> None:
        with database.write() as session:
            (entry,) = [
                each
                for each in list_entries(session, project, 0, 999)
                if each.dedupe_key == "r0:input_tokens"
            ]
            for number in range(MOST_CORRECTIONS + 3):
                correct(session, entry.id, 100 + number, "once more", MAY)
        rows = Page(tables(made(database, project))).rows("corrections")
        assert len(rows) == MOST_CORRECTIONS + 1
        assert rows[-1] == ["and 3 more, as headstart billing entries lists them", "0.000000300"]


class TestMonths:
    @pytest.mark.parametrize(
        ("month", "now", "told"),
        [
            ("2026-02", MAY, "Nothing was charged."),
            ("2026-12", MAY, "Nothing was charged yet: the month has not begun."),
        ],
    )
    def test_without_charges_are_said_to_be_so(
        self, database: Database, project: str, month: str, now: datetime, told: str
    ) -> None:
        page = Page(whole(made(database, project, month, now=now)))
        assert told in "".join(page.text)
        assert page.named("svg") == []
        assert page.rows("meters")[-1][3] == "0.000000000"
        assert page.rows("caches")[-1] == ["", "All", "0", "0.000000000", "0.000000000", "0.000000000"]
        assert page.rows("days") == []

    def test_of_somebody_else_show_nothing_of_this_one(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "other")
            generate(session, other, "theirs", prompt=3, output=1)
        text = tables(made(database, other))
        assert not re.search(r"busy|cachedContents", text)
        assert Page(text).rows("meters")[-1][3] == usd(300 + 400)

    def test_of_a_zone_say_so_and_name_no_billed_month(self, database: Database, project: str) -> None:
        text = "".join(Page(tables(made(database, project, zone="Asia/Kolkata"))).text)
        assert "Billed in" not in text
        assert "Months are billed by UTC." in text
        assert "Asia/Kolkata does not lie whole hours from UTC" in text
        assert "A day of Asia/Kolkata holds the hours that start in it." in text

    def test_where_everything_was_free_have_a_page(self, database: Database) -> None:
        with database.write() as session:
            store(session, book(dict.fromkeys(Meter, 0)), T0)
            project = add_project(session, "p")
            add_cache(session, project, "c")
            generate(session, project, "r", prompt=1100, cached=1000, cache_id="c", output=1)
        page = Page(whole(made(database, project)))
        assert page.named("svg") == []
        assert page.rows("caches")[0][1] == "cachedContents/c"


class TestSafety:
    def test_what_people_write_stays_text(self, database: Database, project: str) -> None:
        rename(database, project, EVIL)
        with database.write() as session:
            (entry,) = [
                each
                for each in list_entries(session, project, 0, 999)
                if each.dedupe_key == "r0:input_tokens"
            ]
            correct(session, entry.id, 1, EVIL, MAY)
        page = Page(whole(made(database, project)))
        assert {tag for tag, _ in page.tags} & {
            "script",
            "img",
            "iframe",
            "object",
            "link",
            "a",
            "base",
        } == set()
        assert [name for _, attributes in page.tags for name in attributes if name.startswith("on")] == []
        shown = EVIL.replace("\x07", "�").replace("\x1b", "�").replace("\u202e", "�")
        text = "".join(page.text)
        assert text.count(shown) == 4 + 1  # title, heading, two caches and a note
        assert "49" not in page.rows("caches")[0][1]
        assert (
            len(page.named("bdi")) > 4
        )  # what is written from the right turns nothing round that stands beside it

    def test_a_name_of_a_hundred_signs_is_whole(self, database: Database, project: str) -> None:
        for sign in ("W", "文", "ש", "👩\u200d🚀", "\u0301", "<"):
            name = (sign * 100)[:100]
            rename(database, project, name)
            page = Page(tables(made(database, project)))
            assert "".join(page.text).count(name) == 4
            assert page.rows("caches")[0][1].startswith(name)

    def test_a_huge_name_is_cut(self, database: Database, project: str) -> None:
        rename(database, project, "n" * 100_000)
        assert len(whole(made(database, project))) < 300_000

    def test_nothing_leads_out_of_the_file(self, database: Database, project: str) -> None:
        text = whole(made(database, project))
        page = Page(text)
        links = ("src", "href", "xlink:href", "action", "data", "srcset", "poster", "background")
        found = [attributes[name] for _, attributes in page.tags for name in links if name in attributes]
        urls = re.findall(r"url\(\s*([^)]*)\)", text)
        assert {(each or "")[:1] for each in [*found, *urls]} == {"#"}
        for sign in ("://", "@import", "@font-face", "<script", "xmlns"):
            assert sign not in text
        policy = {
            "http-equiv": "Content-Security-Policy",
            "content": "default-src 'none'; style-src 'unsafe-inline'",
        }
        assert policy in page.named("meta")

    def test_ids_are_unique_and_what_refers_to_one_finds_it(self, database: Database, project: str) -> None:
        text = whole(made(database, project))
        ids = [attributes["id"] or "" for _, attributes in Page(text).tags if "id" in attributes]
        assert len(ids) == len(set(ids)) > 100
        wanted = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text))
        assert {first or second for first, second in wanted} <= set(ids)


class TestPlots:
    def test_are_named_and_described_for_who_does_not_see_them(
        self, database: Database, project: str
    ) -> None:
        page = Page(whole(made(database, project)))
        names = [plot["aria-labelledby"] for plot in page.named("svg")]
        assert names == [f"{name}-title {name}-text" for name in ("cumulative", "cost", "savings", "caches")]
        assert [plot["role"] for plot in page.named("svg")] == ["img"] * 4
        text = "".join(page.text)
        for name in (*words.NAMES.values(), "USD a day", "USD in the month", "Day of March 2026, UTC"):
            assert name in text
        assert text.count("Caches that cost more than they saved: 1 of 2") == 2  # seen, and read aloud

    def test_are_the_same_bytes_whatever_is_configured(self, database: Database, project: str) -> None:
        found = made(database, project)
        first = whole(found)
        with mpl.rc_context(
            {"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path", "text.usetex": True}
        ):
            assert whole(found) == first
            assert mpl.rcParams["font.size"] == 30

    def test_neighbours_in_a_stack_differ_without_colour(self) -> None:
        def lightness(colour: str) -> float:
            """CIE L*, 0 to 100."""
            red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
            linear = [((each + 0.055) / 1.055) ** 2.4 for each in (red, green, blue)]
            luminance: float = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
            return 116 * cbrt(luminance) - 16

        assert list(COLOURS) == [*Meter]
        shades = {meter: round(lightness(colour)) for meter, colour in COLOURS.items()}
        for first in Meter:
            for second in Meter:
                if first is not second and HATCHES.get(first) == HATCHES.get(second):
                    is_apart = {first, second} == {
                        Meter.CACHE_WRITE_TOKENS,
                        Meter.INPUT_TOKENS,
                    }  # bottom and top
                    assert abs(shades[first] - shades[second]) >= 18 or is_apart, (first, second)


class TestWords:
    @pytest.mark.parametrize(
        ("nano_usd", "shown"),
        [
            (0, "0.000000000"),
            (7, "0.000000007"),
            (1_234_567, "0.00123"),
            (999_999_999, "1.000"),
            (1_005_000_000, "1.01"),
            (12_345_678_901_234, "12,345.68"),
            (-1_994_999_999, "−1.99"),
            (-45_600, "−0.0000456"),
        ],
    )
    def test_an_amount_is_rounded_for_reading(self, nano_usd: int, shown: str) -> None:
        assert words.about_usd(nano_usd) == shown

    @pytest.mark.parametrize(
        ("nano_usd", "shown"), [(0, "0.00"), (10**9, "1.00"), (62_500_001, "0.062500001")]
    )
    def test_a_unit_price_is_exact(self, nano_usd: int, shown: str) -> None:
        assert words.price_usd(nano_usd) == shown
