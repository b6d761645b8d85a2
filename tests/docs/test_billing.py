"""docs/billing.md works out one bill: each of its figures is computed anew here, in fractions, and once more by the bill itself."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from math import floor
from pathlib import Path

from sqlalchemy.orm import Session

from billing import storage, usage
from billing.meters import Meter
from billing.money import usd
from billing.periods import Bucket, Period
from billing.price import ANY, Price
from billing.price_book import make_book
from billing.prices import store
from billing.report import Query, Sums, report
from models.session import Database
from tests.billing.rows import add_cache, add_project, bring_up_to_date, faults, reserve, write

PAGE = (Path(__file__).parents[2] / "docs" / "billing.md").read_text(encoding="utf-8")
NOON = datetime(2026, 10, 14, 12, tzinfo=UTC)
USABLE = NOON.replace(hour=9, minute=12, second=30, microsecond=400_000)
EXPIRY = USABLE + timedelta(hours=6)
DAY = Period(NOON - timedelta(hours=12), NOON + timedelta(hours=12))
TOKENS, QUESTIONS, BEFORE_NOON = 100_000, 40, 25
SECONDS = (2850, 3600, 3600), (3600, 3600, 3600, 750)  # of each hour, before noon and after it
INPUT, OUTPUT = Fraction("1.25"), Fraction("5.00")
READ, KEPT = (Fraction("0.125"), Fraction("0.10")), (Fraction("1.00"), Fraction("0.80"))
NANO, MILLION = 10**9, 10**6


def token_cost(tokens: int, usd_per_million: Fraction) -> int:
    return floor(tokens * usd_per_million * NANO / MILLION)


def kept_for(seconds: int, usd_per_million: Fraction) -> int:
    return floor(Fraction(TOKENS * seconds, 3600) * usd_per_million * NANO / MILLION)


@dataclass(frozen=True)
class Example:
    """The figures of the page in nano-USD, worked out by what it says and by nothing of ours."""

    written: int
    hours: list[tuple[int, int]]  # of storage: so far since the price began, and what the hour pays
    before: int  # of storage: before noon, and after it
    after: int
    each: list[int]  # read before noon, read after it, input, output
    times: list[int]

    @property
    def kept(self) -> int:
        return self.before + self.after

    @property
    def asked(self) -> list[int]:
        return [each * times for each, times in zip(self.each, self.times, strict=True)]

    @property
    def total(self) -> int:
        return self.written + self.kept + sum(self.asked)

    @property
    def without_cache(self) -> int:
        return QUESTIONS * (token_cost(TOKENS, INPUT) + self.each[2] + self.each[3])

    @property
    def saved_each(self) -> int:
        return token_cost(TOKENS, INPUT) - self.each[0]

    @property
    def extended(self) -> int:
        """What an hour from 15:00 on costs more than the rest of the six."""
        return kept_for(4 * 3600, KEPT[1]) - self.after

    def figures(self) -> list[int]:
        """All of them, in the order in which the page has them."""
        return [
            self.written,
            *chain.from_iterable(self.hours),
            *(self.before, self.after, self.kept),
            *chain.from_iterable(zip(self.each, self.asked, strict=True)),
            *(self.written, self.kept, *self.asked, self.total),
            *(token_cost(TOKENS, INPUT), self.without_cache, self.without_cache - self.total),
            *(self.written + self.kept, self.saved_each),
            *(self.before, self.extended),
        ]


def worked_out() -> Example:
    hours: list[tuple[int, int]] = []
    ends = []
    for price, seconds in zip(KEPT, SECONDS, strict=True):
        so_far = [kept_for(elapsed, price) for elapsed in accumulate(seconds, initial=0)]
        hours += [(later, later - earlier) for earlier, later in pairwise(so_far)]
        ends.append(so_far[-1])
    return Example(
        written=token_cost(TOKENS, INPUT),
        hours=hours,
        before=ends[0],
        after=ends[1],
        each=[
            token_cost(TOKENS, READ[0]),
            token_cost(TOKENS, READ[1]),
            token_cost(30, INPUT),
            token_cost(150, OUTPUT),
        ],
        times=[BEFORE_NOON, QUESTIONS - BEFORE_NOON, QUESTIONS, QUESTIONS],
    )


EXAMPLE = worked_out()


def test_every_figure_of_the_page_is_right() -> None:
    assert re.findall(r"\b\d+\.\d{9}\b", PAGE) == [usd(figure) for figure in EXAMPLE.figures()]


def test_the_cache_pays_from_the_question_that_the_page_names() -> None:
    (named,) = re.findall(r"from the (\d+)th question on", PAGE)
    fixed = EXAMPLE.written + EXAMPLE.kept
    assert (int(named) - 1) * EXAMPLE.saved_each < fixed < int(named) * EXAMPLE.saved_each


def prices() -> list[Price]:
    at_first = {
        Meter.CACHE_WRITE_TOKENS: INPUT,
        Meter.INPUT_TOKENS: INPUT,
        Meter.CACHE_READ_TOKENS: READ[0],
        Meter.IMPLICIT_CACHE_READ_TOKENS: READ[0],
        Meter.CACHE_STORAGE_TOKEN_SECONDS: KEPT[0],
        Meter.OUTPUT_TOKENS: OUTPUT,
    }
    from_noon = {Meter.CACHE_READ_TOKENS: READ[1], Meter.CACHE_STORAGE_TOKEN_SECONDS: KEPT[1]}
    return [
        Price(ANY, ANY, meter, since, None, int(price * NANO))
        for since, prices_then in ((NOON - timedelta(days=99), at_first), (NOON, from_noon))
        for meter, price in prices_then.items()
    ]


def live(session: Session) -> str:
    """Let the example happen."""
    store(session, make_book("page", prices()), NOON - timedelta(days=9))
    project = add_project(session, "p")
    add_cache(session, project, "document", tokens=TOKENS, start=USABLE, end=EXPIRY)
    write(session, project, "document", tokens=TOKENS, at=USABLE)
    for number in range(QUESTIONS):
        minutes = number + 1 - BEFORE_NOON
        accepted = NOON + timedelta(minutes=minutes) if minutes else NOON - timedelta(seconds=2)
        name = f"question {number}"
        reserve(session, project, name, prompt=TOKENS + 30, cached=TOKENS, cache_id="document", at=accepted)
        assert usage.finalise(session, name, 1, 150, accepted + timedelta(seconds=5), "STOP")
    return project


def bill(database: Database, project: str, bucket: Bucket | None = None) -> dict[str, Sums]:
    with database.read() as session:
        made = report(session, Query(DAY, project, bucket=bucket), DAY.end)
    return {group[0] if group else "": sums for group, sums in made.groups.items()}


class TestTheBillItself:
    def test_comes_to_what_the_page_says(self, database: Database) -> None:
        with database.write() as session:
            project = live(session)
        bring_up_to_date(database, DAY.end)
        sums = bill(database, project)[""]
        read_before, read_after, computed, output = EXAMPLE.asked
        assert {meter: line.amount_nano_usd for meter, line in sums.lines.items()} == {
            Meter.CACHE_WRITE_TOKENS: EXAMPLE.written,
            Meter.CACHE_STORAGE_TOKEN_SECONDS: EXAMPLE.kept,
            Meter.CACHE_READ_TOKENS: read_before + read_after,
            Meter.IMPLICIT_CACHE_READ_TOKENS: 0,
            Meter.INPUT_TOKENS: computed,
            Meter.OUTPUT_TOKENS: output,
        }
        assert (sums.amount_nano_usd, sums.without_cache_nano_usd) == (EXAMPLE.total, EXAMPLE.without_cache)
        assert sums.hits == QUESTIONS
        assert faults(database, DAY.end) == []

    def test_has_the_hours_of_the_page(self, database: Database) -> None:
        with database.write() as session:
            project = live(session)
        bring_up_to_date(database, DAY.end)
        hours = bill(database, project, Bucket.HOUR)
        stored = [sums.lines[Meter.CACHE_STORAGE_TOKEN_SECONDS] for sums in hours.values()]
        assert [line.amount_nano_usd for line in stored] == [pays for _, pays in EXAMPLE.hours]
        assert [line.quantity // TOKENS for line in stored] == [*chain.from_iterable(SECONDS)]
        assert list(hours) == [f"2026-10-14T{hour:02}:00Z" for hour in range(9, 16)]
        # The question that was accepted two seconds before noon is among those of noon.
        assert hours["2026-10-14T12:00Z"].hits == QUESTIONS - BEFORE_NOON + 1

    def test_storage_ends_with_the_cache(self, database: Database) -> None:
        with database.write() as session:
            project = live(session)
            storage.close(session, "document", NOON)
        assert self.kept(database, project) == EXAMPLE.before

    def test_storage_goes_on_when_it_is_extended(self, database: Database) -> None:
        with database.write() as session:
            project = live(session)
            storage.move_end(session, "document", NOON + timedelta(hours=4))
        assert self.kept(database, project) == EXAMPLE.kept + EXAMPLE.extended

    def kept(self, database: Database, project: str) -> int:
        bring_up_to_date(database, DAY.end)
        return bill(database, project)[""].lines[Meter.CACHE_STORAGE_TOKEN_SECONDS].amount_nano_usd
