"""A quote is what the bill will be: against the ledger, and against exact fractions by other means."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from math import floor

import pytest
from hypothesis import given, settings as fuzzing, strategies as st

from billing.break_even import hits_per_hour_to_keep, rounded
from billing.meters import CREATE_METERS, GENERATE_METERS, Meter
from billing.periods import Period
from billing.price import ANY
from billing.price_book import PriceBook
from billing.prices import load_prices
from billing.quote import Plan, Quote, quote
from billing.quote_json import quote_json
from billing.report import Line, Query, Subject, report
from billing.timelines import Prices
from core.errors import PriceMissing
from models.session import Database
from tests.billing.rows import (
    MODEL,
    PRICES,
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    bring_up_to_date,
    faults,
    generate,
    joined,
    write,
)

WRITE, KEEP = CREATE_METERS
READ, INPUT, OUTPUT = Meter.CACHE_READ_TOKENS, Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS
TICK = timedelta(microseconds=1)
PLAN = Plan(ANY, MODEL, 1000, T0, after(3600), hits=10, suffix_tokens=7, output_tokens=3)
# Each of a hit's prices changes within the hour, and so does that of keeping.
CHANGES = (
    book({KEEP: 3_000_000_001}, since=after(600)),
    book({READ: 90_000_001, KEEP: 7}, since=after(1799)),
    book({INPUT: 200_000_003, OUTPUT: 0}, since=after(3000)),
)


def made(plan: Plan, *books: PriceBook) -> Quote:
    return quote(plan, Prices(joined(book(), *books).prices))


def instants(plan: Plan) -> Iterator[datetime]:
    """When the hits of a plan come: evenly over the life."""
    life = (plan.end - plan.start) // TICK
    for number in range(plan.hits):
        yield plan.start + floor(Fraction(number * life, plan.hits)) * TICK


def figures(made: Quote) -> dict[Meter, tuple[int, int, int]]:
    lines = made.sums.lines.items()
    return {
        meter: (line.quantity, line.amount_nano_usd, line.without_cache_nano_usd)
        for meter, line in lines
        if line.quantity
    }


class TestAgainstTheLedger:
    @pytest.mark.parametrize("changes", [(), CHANGES], ids=["one price", "prices to come"])
    @pytest.mark.parametrize(
        ("start", "seconds", "hits"),
        [
            (0, 3600, 10),
            (0.25, 3599.5, 7),
            (0.75, 90_000.5, 13),
            (3599.999999, 0.5, 1),
            (1800, 0.25, 2),
            (5, 100, 0),
        ],
    )
    def test_each_meter_is_what_the_ledger_holds_in_the_end(
        self, database: Database, changes: Sequence[PriceBook], start: float, seconds: float, hits: int
    ) -> None:
        with database.write() as session:
            add_prices(session, book(), *changes)
            project = add_project(session, "p")
            plan = replace(
                PLAN,
                project_id=project,
                token_count=4097,
                start=after(start),
                end=after(start + seconds),
                hits=hits,
            )
            promised = quote(plan, load_prices(session))
            add_cache(session, project, "c", tokens=4097, start=plan.start, end=plan.end)
            write(session, project, "c", tokens=4097, at=plan.start)
            for number, at in enumerate(instants(plan)):
                generate(
                    session, project, f"r{number}", prompt=4104, cached=4097, output=3, cache_id="c", at=at
                )
        end = plan.end + timedelta(hours=1)
        bring_up_to_date(database, end)
        assert faults(database, end) == []
        with database.read() as session:
            bill = report(
                session, Query(Period(T0, end + timedelta(hours=1)), project, (Subject.CACHE,)), end
            )
        assert promised.sums.lines == bill.groups["c",].lines
        assert bill.total.provisional_nano_usd == 0

    def test_a_project_is_quoted_its_own_prices(self, database: Database) -> None:
        with database.write() as session:
            project = add_project(session, "p")
            add_prices(session, book(), book({READ: 0}, project_id=project))
            prices = load_prices(session)
        assert quote(replace(PLAN, project_id=project), prices).sums.lines[READ].amount_nano_usd == 0
        assert quote(PLAN, prices).sums.lines[READ].amount_nano_usd == 100_000


class TestByHand:
    def test_what_is_written_kept_read_and_told(self) -> None:
        promised = made(PLAN)
        assert figures(promised) == {
            WRITE: (1000, 100_000, 0),
            KEEP: (3_600_000, 1_000_000, 0),
            READ: (10_000, 100_000, 1_000_000),
            INPUT: (70, 7_000, 7_000),
            OUTPUT: (30, 12_000, 12_000),
        }
        assert promised.sums.hits == 10
        assert promised.sums.saved_nano_usd == 900_000 - 1_100_000
        # 1,100,000 spent, 90,000 saved by a hit.
        assert promised.hits_to_pay == 13
        assert promised.hits_per_hour_to_keep == Fraction(100, 9)

    def test_each_hit_is_rounded_down_by_itself(self) -> None:
        prices = dict.fromkeys(Meter, 0) | {READ: 1, INPUT: 1_999_999}
        promised = quote(
            replace(PLAN, token_count=1, suffix_tokens=0, hits=1000), Prices(book(prices).prices)
        )
        assert figures(promised) == {
            WRITE: (1, 0, 0),
            KEEP: (3600, 0, 0),
            READ: (1000, 0, 1000),
            OUTPUT: (3000, 0, 0),
        }

    def test_prices_to_come_count_from_their_instant_on(self) -> None:
        promised = made(
            PLAN, book({KEEP: 3_000_000_000, READ: 20_000_000, INPUT: 40_000_000}, since=after(1800))
        )
        assert figures(promised)[KEEP] == (3_600_000, 500_000 + 1_500_000, 0)
        assert figures(promised)[READ] == (10_000, 5 * 10_000 + 5 * 20_000, 5 * 100_000 + 5 * 40_000)
        # 2,100,000 spent; half of the hits save 90,000 each, half 20,000.
        assert promised.hits_to_pay == 39
        assert promised.hits_per_hour_to_keep == Fraction(100, 9), "that of its start"
        assert made(PLAN, book({KEEP: 3_000_000_000}, since=PLAN.end)).sums.lines == made(PLAN).sums.lines

    @pytest.mark.parametrize("hits", [0, 10])
    def test_it_never_pays_where_reading_costs_what_computing_does(self, hits: int) -> None:
        promised = quote(replace(PLAN, hits=hits), Prices(book(PRICES | {READ: PRICES[INPUT]}).prices))
        assert promised.hits_to_pay is None
        assert promised.hits_per_hour_to_keep is None
        assert promised.sums.saved_nano_usd == -1_100_000

    def test_it_pays_without_a_hit_where_it_costs_nothing(self) -> None:
        free = PRICES | dict.fromkeys(CREATE_METERS, 0)
        promised = quote(replace(PLAN, hits=0), Prices(book(free).prices))
        assert promised.hits_to_pay == promised.hits_per_hour_to_keep == 0
        assert promised.sums.amount_nano_usd == 0

    def test_with_as_many_hits_an_hour_as_it_takes_a_long_life_pays_for_itself(self) -> None:
        plan = replace(PLAN, token_count=10**6, end=after(9 * 3600), hits=100)
        sums = made(plan).sums
        assert sums.saved_nano_usd + sums.lines[WRITE].amount_nano_usd == 0

    @pytest.mark.parametrize("missing", [*CREATE_METERS, *GENERATE_METERS])
    def test_without_a_price_there_is_no_quote(self, missing: Meter) -> None:
        prices = Prices(
            book({meter: price for meter, price in PRICES.items() if meter is not missing}).prices
        )
        with pytest.raises(PriceMissing, match=missing):
            quote(replace(PLAN, hits=0, output_tokens=0), prices)
        late = joined(book({meter: price for meter, price in PRICES.items() if meter is not missing}))
        with pytest.raises(PriceMissing, match=missing):
            quote(PLAN, Prices([*late.prices, *book({missing: 1}, since=after(0.000001)).prices]))


amounts = st.one_of(st.just(0), st.integers(0, 10**9), st.integers(10**8, 10**13))


@st.composite
def planned(draw: st.DrawFn) -> tuple[Plan, PriceBook]:
    """A plan, and a book in which any price may change while it lives; reads never cost more than input."""
    start = T0 + timedelta(microseconds=draw(st.integers(0, 2 * 10**6)))
    life = timedelta(microseconds=draw(st.integers(1, 3 * 3600 * 10**6)))
    plan = Plan(
        ANY,
        MODEL,
        draw(st.integers(1, 100_000)),
        start,
        start + life,
        draw(st.integers(0, 40)),
        draw(st.integers(0, 500)),
        draw(st.integers(0, 500)),
    )
    books = []
    changes = draw(st.lists(st.integers(0, 4 * 3600), max_size=3, unique=True))
    for seconds in (-86_400, *sorted(changes)):
        prices = {meter: draw(amounts) for meter in Meter}
        reads = (READ, Meter.IMPLICIT_CACHE_READ_TOKENS)
        prices |= {meter: min(prices[meter], prices[INPUT]) for meter in reads}
        books.append(book(prices, since=after(seconds)))
    return plan, joined(*books)


def price(prices: PriceBook, meter: Meter, at: datetime) -> int:
    (only,) = [each for each in prices.prices if each.meter is meter and each.holds_at(at)]
    return only.nano_usd_per_million


def cut(tokens: int, nano_usd_per_million: int) -> int:
    return floor(Fraction(tokens * nano_usd_per_million, 10**6))


def kept(plan: Plan, prices: PriceBook) -> int:
    """Second by second would be slow: price by price, each rounded down by itself."""
    first, last = (at.replace(microsecond=0) for at in (plan.start, plan.end))
    total = 0
    for each in prices.prices:
        if each.meter is KEEP:
            begin, end = max(first, each.effective_from), min(last, each.effective_to or last)
            if begin < end:
                seconds = (end - begin).total_seconds()
                total += floor(
                    Fraction(plan.token_count * int(seconds) * each.nano_usd_per_million, 3600 * 10**6)
                )
    return total


def saved(plan: Plan, prices: PriceBook, at: datetime) -> int:
    """By a hit at an instant."""
    return cut(plan.token_count, price(prices, INPUT, at)) - cut(plan.token_count, price(prices, READ, at))


def mean_saved(plan: Plan, prices: PriceBook) -> Fraction:
    """By a hit at any instant of the life, one as likely as another."""
    changes = {each.effective_from for each in prices.prices if plan.start < each.effective_from < plan.end}
    edges = sorted({plan.start, plan.end} | changes)
    parts = [
        Fraction((end - begin) // TICK, (plan.end - plan.start) // TICK) for begin, end in pairwise(edges)
    ]
    return sum((part * saved(plan, prices, at) for part, at in zip(parts, edges, strict=False)), Fraction(0))


@given(planned())
@fuzzing(deadline=None, max_examples=150)
def test_any_plan_costs_what_exact_fractions_say(plan_and_prices: tuple[Plan, PriceBook]) -> None:
    plan, prices = plan_and_prices
    promised = quote(plan, Prices(prices.prices))
    written = cut(plan.token_count, price(prices, WRITE, plan.start))
    lines = promised.sums.lines
    assert lines[WRITE] == Line(plan.token_count, written, 0, 1)
    assert lines[KEEP].amount_nano_usd == kept(plan, prices)
    hits = list(instants(plan))
    for meter, tokens in (
        (READ, plan.token_count),
        (INPUT, plan.suffix_tokens),
        (OUTPUT, plan.output_tokens),
    ):
        assert lines[meter].quantity == tokens * plan.hits
        assert lines[meter].amount_nano_usd == sum(cut(tokens, price(prices, meter, at)) for at in hits)
    spent = written + kept(plan, prices)
    assert promised.sums.saved_nano_usd == sum(saved(plan, prices, at) for at in hits) - spent
    assert promised.sums.hits == plan.hits

    mean, least = mean_saved(plan, prices), promised.hits_to_pay
    if least is None:
        assert mean == 0 < spent
    else:
        assert mean * least >= spent
        assert least == 0 or mean * (least - 1) < spent


class TestBreakEven:
    def test_is_the_price_of_keeping_over_what_a_read_saves(self) -> None:
        prices = Prices(joined(book(), book({KEEP: 2 * 10**9}, since=after(1))).prices)
        assert hits_per_hour_to_keep(prices, ANY, MODEL, T0) == Fraction(100, 9)
        assert hits_per_hour_to_keep(prices, ANY, MODEL, after(1)) == Fraction(200, 9)

    def test_is_rounded_only_to_be_shown(self) -> None:
        assert rounded(Fraction(100, 9)) == 11.1111
        assert rounded(Fraction(0)) == 0
        assert rounded(None) is None


def test_as_json() -> None:
    shown = quote_json(made(replace(PLAN, start=after(0.25))))
    meters = shown.pop("meters")
    assert [line["meter"] for line in meters] == [*Meter]
    assert meters[2] == {
        "meter": "cache_read_tokens",
        "unit": "tokens",
        "quantity": 10_000,
        "amountNanoUsd": 100_000,
        "withoutCacheNanoUsd": 1_000_000,
        "entries": 10,
    }
    assert shown == {
        "project": None,
        "model": "tiny",
        "tokenCount": 1000,
        "start": "2026-03-01T12:00:00.250000Z",
        "end": "2026-03-01T13:00:00.000000Z",
        "seconds": 3600,
        "suffixTokens": 7,
        "outputTokens": 3,
        "amountNanoUsd": 1_219_000,
        "provisionalNanoUsd": 0,
        "withoutCacheNanoUsd": 1_019_000,
        "savedNanoUsd": -200_000,
        "hits": 10,
        "hitRate": round(1000 / 1007, 4),
        "breakEvenHits": 13,
        "breakEvenHitsPerHour": 11.1111,
    }
    assert quote_json(made(replace(PLAN, project_id="proj_1")))["project"] == "proj_1"
