"""Public cases of prices that were missing, mistaken or changed, each through ours; docs/billing-cases.md lists all."""

import ast
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from billing.charges import usage_charges
from billing.corrections import correct_amount
from billing.cost import cost_of_request
from billing.meters import CREATE_METERS, GENERATE_METERS, Meter
from billing.periods import Bucket, Period
from billing.price_book import load_price_book, make_book
from billing.price_diff import diff
from billing.prices import list_prices, load_prices, store, unpriced_meters
from billing.report import Subject
from billing.report_csv import report_csv
from caching import leases
from core.errors import PriceBookInvalid, PriceMissing
from models.cache import Cache
from models.ledger_entry import list_entries
from models.session import Database
from models.usage import find_usage
from tests.billing.bills import amounts, bill, entries, quantities, total
from tests.billing.rows import (
    LONG_AGO,
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
    key_of,
    reserve,
    write,
)
from tests.caching.scene import Scene
from tests.fakes.clock import ManualClock
from tests.models.rows import add_customer

READ, INPUT, STORAGE = Meter.CACHE_READ_TOKENS, Meter.INPUT_TOKENS, Meter.CACHE_STORAGE_TOKEN_SECONDS
IMPLICIT, OUTPUT, WRITE = Meter.IMPLICIT_CACHE_READ_TOKENS, Meter.OUTPUT_TOKENS, Meter.CACHE_WRITE_TOKENS


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        project_id = add_project(session, "p")
        add_cache(session, project_id, "c", end=after(3600))
        return project_id


def test_a_price_of_ones_own_does_not_lose_the_cached_rate(database: Database, project: str) -> None:
    """BerriAI/litellm#28009, BerriAI/litellm#27922: custom prices left the cached rate out, 67 % too much, and a daily sum left
    cached tokens out. A project's own price is of one meter; every other falls back to everybody's, and days hold all meters,
    before anything is rolled up, when all is, and when something came after.
    """
    with database.write() as session:
        store(
            session,
            joined(book(), book({INPUT: 50_000_000}, project_id=project)),
            LONG_AGO - timedelta(days=1),
        )
    for requests, name in enumerate(("r1", "r2"), 1):
        with database.write() as session:
            generate(session, project, name, prompt=1100, cached=1000, implicit=30, cache_id="c", output=2)
        for moment in (bring_up_to_date, faults):
            (day,) = bill(database, bucket=Bucket.DAY, now=T0).groups.values()
            told = {meter: (line.quantity, line.amount_nano_usd) for meter, line in day.lines.items()}
            expected = {INPUT: (70, 3_500), READ: (1000, 10_000), IMPLICIT: (30, 300), OUTPUT: (2, 800)}
            assert {meter: each for meter, each in told.items() if each[0]} == {
                meter: (requests * quantity, requests * amount)
                for meter, (quantity, amount) in expected.items()
            }
            assert not moment(database, T0)


def test_a_slip_in_the_price_table_does_not_make_hits_dear() -> None:
    """BerriAI/litellm#9833: a slip in a table made cached tokens cost ten times as much. A book in which a read costs more than
    input is refused, and what a book would change is shown before it counts.
    """
    right = book({**PRICES, INPUT: 50_000_000, READ: 5_000_000})
    slip = [*book({**PRICES, INPUT: 50_000_000, READ: 51_000_000}).prices]
    with pytest.raises(PriceBookInvalid, match="more than input does"):
        make_book("slip", slip)
    dearer = book({READ: 50_000_000}, since=after(60))
    changes = diff(right.prices, joined(right, dearer).prices)
    assert {(change.kind, change.price.meter) for change in changes} == {("added", READ), ("end moved", READ)}


def test_a_cached_price_that_is_missing_is_not_one_of_zero(database: Database, project: str) -> None:
    """BerriAI/litellm#6891, BerriAI/litellm#10667: a cached price that was null was used as nothing. Without one no request is
    accepted, and the error names the meter.
    """
    with database.write() as session:
        add_prices(session, book({meter: price for meter, price in PRICES.items() if meter is not READ}))
    with pytest.raises(PriceMissing, match="cache_read_tokens"), database.write() as session:
        leases.acquire(
            session,
            ManualClock(T0),
            project_id=project,
            key_id=key_of(project),
            cache_id="c",
            model=MODEL,
            fingerprint="00:00",
            request_id="r",
            prompt_tokens=1010,
            cache_tokens=1000,
            most_output_tokens=100,
            incarnation="inc",
        )
    with database.read() as session:
        assert find_usage(session, "r") is None


def test_every_meter_has_a_place_in_the_price_table(database: Database) -> None:
    """langfuse/langfuse#4590: the table of models had no column for a cached price. Ours has a row for each meter, reads, writes
    and storage included, and the book that ships has them all.
    """
    with database.write() as session:
        store(session, load_price_book(None), T0)
        assert {price.meter for price in list_prices(session)} == set(Meter)
        assert unpriced_meters(session, "any", T0) == []
    assert {*CREATE_METERS, *GENERATE_METERS} == set(Meter)


@pytest.mark.parametrize("missing", CREATE_METERS)
def test_written_tokens_are_not_free(database: Database, missing: Meter) -> None:
    """langfuse/langfuse#14249: tokens written into a cache had no price and cost nothing. While writing or keeping has none, no cache
    is made; with one it is charged.
    """
    with database.write() as session:
        customer = add_customer(session, "p")
        add_prices(session, book({meter: price for meter, price in PRICES.items() if meter is not missing}))
    scene = Scene(database, ManualClock(T0), customer)
    with pytest.raises(PriceMissing, match=missing):
        scene.create()
    with database.read() as session:
        assert session.scalars(select(Cache)).all() == []
    with database.write() as session:
        store(session, book(), T0)
    scene.active()
    assert [(each.meter, each.quantity, each.amount_nano_usd) for each in entries(database)] == [
        (WRITE, 100, 10_000)
    ]


def test_a_price_that_began_earlier_is_not_passed_over_silently(database: Database, project: str) -> None:
    """langfuse/langfuse#12184: a price with an earlier start date changed nothing for what was used since. Ours refuses it where
    something may have been charged, and an operator's correction appends the difference.
    """
    cheaper = book({INPUT: 50_000_000}, since=T0 - timedelta(hours=1))
    with database.write() as session:
        add_prices(session, book())
        generate(session, project, "r", prompt=1000, output=0)
    with pytest.raises(PriceBookInvalid, match="in the past"), database.write() as session:
        store(session, joined(book(), cheaper), after(60))
    (charged,) = entries(database)
    with database.write() as session:
        correct_amount(session, charged.id, 50_000, "half the price since 11:00", after(60))
    assert [entry.amount_nano_usd for entry in entries(database)] == [100_000, -50_000]
    assert quantities(bill(database, now=T0)) == {INPUT: 1000}
    assert entries(database)[1].hour == charged.hour


@pytest.mark.parametrize("name", ["cached_input_tokens", "input_cached", "cache_read_input_tokens"])
def test_a_name_that_does_not_match_is_not_a_charge_of_zero(tmp_path: Path, name: str) -> None:
    """langfuse/codex-observability-plugin#22: the repair of an over-charge spelt a key in another way, and nothing was charged.
    A meter that is unknown is refused, with the names of those there are.
    """
    path = tmp_path / "prices.toml"
    path.write_text(
        f'[[price]]\nmodel = "*"\nmeter = "{name}"\nnano_usd_per_million = 5\neffective_from = 2026-01-01T00:00:00Z\n'
    )
    with pytest.raises(PriceBookInvalid, match=r"meter must be one of .*cache_read_tokens"):
        load_price_book(path)
    with pytest.raises(ValueError, match=name):
        Meter(name)


def test_keeping_for_an_hour_is_not_charged_as_for_five_minutes(database: Database, project: str) -> None:
    """langfuse/claude-observability-plugin#34: writes for an hour had the price of writes for five minutes, 25 % too little.
    Writing has one price, and the time is a meter of its own: an hour costs twelve times five minutes.
    """
    with database.write() as session:
        add_prices(session, book())
        add_cache(session, project, "short", tokens=1000, start=T0, end=after(300))
        write(session, project, "short", tokens=1000)
        write(session, project, "c", tokens=1000)
    bring_up_to_date(database, after(7200))
    made = bill(database, Subject.CACHE).groups
    hour, five = made["c",].lines, made["short",].lines
    assert hour[STORAGE].quantity == 12 * five[STORAGE].quantity
    assert (hour[STORAGE].amount_nano_usd, five[STORAGE].amount_nano_usd) == (1_000_000, 83_333)
    assert hour[Meter.CACHE_WRITE_TOKENS].amount_nano_usd == five[Meter.CACHE_WRITE_TOKENS].amount_nano_usd


def test_history_is_not_priced_again_by_todays_table(database: Database, project: str) -> None:
    """ryoppippi/ccusage#1636, steipete/CodexBar#2671, mozilla-ai/any-llm#995: a new price table changed old bills. An entry
    holds its amount and the price it had; the report is the same byte for byte, and prices in force cannot be changed.
    """
    with database.write() as session:
        add_prices(session, book())
        generate(session, project, "r", prompt=1100, cached=1000, cache_id="c", output=7)
    before = list(report_csv(bill(database, Subject.PROJECT, now=T0)))
    with database.write() as session:
        store(session, joined(book(), book(dict.fromkeys(PRICES, 7), since=after(60))), after(30))
        generate(session, project, "later", prompt=1, output=0, at=after(7200))
    old = [entry for entry in entries(database) if entry.dedupe_key.startswith("r:")]
    with database.read() as session:
        prices = {price.id: price for price in list_prices(session)}
    assert {prices[entry.price_id or 0].effective_to for entry in old} == {after(60)}
    first_hours = bill(database, Subject.PROJECT, period=Period(LONG_AGO, after(3600)), now=T0)
    assert list(report_csv(first_hours)) == before
    with pytest.raises(PriceBookInvalid, match="is in force"), database.write() as session:
        store(session, book(dict.fromkeys(PRICES, 7)), after(60))


def test_two_places_do_not_disagree_on_what_cached_tokens_cost(database: Database, project: str) -> None:
    """rh-aiservices-bu/litemaas#171: two systems disagreed on whether cached tokens cost anything. The cost that an answer
    tells, the ledger, the report, the recomputation and the rating of the row itself say the same.
    """
    with database.write() as session:
        add_prices(session, book())
        generate(session, project, "r", prompt=1300, cached=1000, implicit=256, cache_id="c", output=7)
        told = cost_of_request(session, project, "r")
        row = find_usage(session, "r")
        assert row is not None
        rated = {charge.meter: charge.amount_nano_usd for charge in usage_charges(row, load_prices(session))}
        posted = {entry.meter: entry.amount_nano_usd for entry in list_entries(session, project, 0, 10)}
    assert dict(told.meters) == posted == rated == amounts(bill(database, now=T0))
    assert told.without_cache_nano_usd == bill(database, now=T0).total.without_cache_nano_usd
    assert faults(database, after(10)) == []


def test_a_full_hit_is_not_priced_by_a_second_calculator(database: Database, project: str) -> None:
    """Aider-AI/aider#5516: a calculator for when the first one failed was 10.9 times too high on full hits. There is one, and
    nothing is told while it has not spoken: only `rating` multiplies by a price, and only what makes charges of rows, and what
    holds the most that they can become, asks it. The reconciliation alone computes for itself, in order to disagree.
    """
    with database.write() as session:
        add_prices(session, book())
        add_cache(session, project, "whole", tokens=109_000)
        reserve(session, project, "open", prompt=109_000, cached=109_000, cache_id="whole")
        assert cost_of_request(session, project, "open").meters == ()
        generate(session, project, "r", prompt=109_000, cached=109_000, cache_id="whole", output=0)
    assert quantities(bill(database, now=T0)) == {READ: 109_000}
    assert total(database, now=T0) == 109_000 * 10
    assert bill(database, now=T0).total.without_cache_nano_usd == 109_000 * 100
    sources = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
    }
    trees = {
        name: ast.parse(source)
        for name, source in sources.items()
        if "nano_usd_per_million" in source or "billing.rating" in source
    }
    assert {name for name, tree in trees.items() if multiplies_by_a_price(tree)} == {
        "billing/rating.py",
        "billing/recompute.py",
    }
    assert {name for name, tree in trees.items() if asks_rating_for_an_amount(tree)} == {
        "billing/bounds.py",
        "billing/charges.py",
        "billing/differences.py",
    }


ROOT = Path(__file__).parents[2]
LAYERS = ("api", "billing", "caching", "cli", "core", "models", "workers")


def multiplies_by_a_price(tree: ast.Module) -> bool:
    return any(
        "nano_usd_per_million" in ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv)
    )


def asks_rating_for_an_amount(tree: ast.Module) -> bool:
    amounts = {"token_charge", "storage_charge", "storage_floor", "storage_ceiling", "TOKENS_PER_PRICE_UNIT"}
    amounts |= {"TOKEN_SECONDS_PER_PRICE_UNIT"}
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(
        node.module == "billing.rating" and amounts & {each.name for each in node.names} for node in imported
    )
