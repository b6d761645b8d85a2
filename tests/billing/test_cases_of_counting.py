"""Public cases of cached tokens that were counted wrongly, each through our ledger; docs/billing-cases.md lists all."""

import csv
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.report import Subject
from billing.report_csv import report_csv
from billing.report_json import report_json
from billing.verify import verify
from models.session import Database
from tests.billing.bills import LATE, USD, amounts, bill, quantities, total
from tests.billing.rows import (
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    bring_up_to_date,
    faults,
    generate,
    write,
)

PROMPT = (Meter.INPUT_TOKENS, Meter.CACHE_READ_TOKENS, Meter.IMPLICIT_CACHE_READ_TOKENS)
FREE = dict.fromkeys(Meter, 0)
GOLDEN = Path(__file__).with_name("golden_bills.toml")
MOMENT = T0 + timedelta(microseconds=1)  # a life of no second: storage costs nothing


def start(database: Database, prices: dict[Meter, int] | None = None, *, tokens: int = 1000) -> str:
    """A project under these prices, with a cache "c" of so many tokens, which is not written yet."""
    with database.write() as session:
        add_prices(session, book() if prices is None else book(FREE | prices))
        project_id = add_project(session, "p")
        add_cache(session, project_id, "c", tokens=tokens, end=MOMENT)
        return project_id


def test_a_hit_is_not_charged_at_the_full_rate_and_at_the_reduced_one(database: Database) -> None:
    """BerriAI/litellm#14849: 0.7642 USD were shown where 0.1849 are right. A token is in one part of a prompt, by a
    constraint, and so has one price.
    """
    prices = {
        Meter.INPUT_TOKENS: 1_250_000_000,
        Meter.CACHE_READ_TOKENS: 625_000_000,
        Meter.OUTPUT_TOKENS: 10 * USD,
    }
    project = start(database, prices, tokens=257_955)
    with database.write() as session:
        generate(session, project, "r", prompt=262_960, cached=257_955, cache_id="c", output=1_744)
    assert total(database) == 184_918_125
    assert round(total(database) / USD, 4) == 0.1849
    with pytest.raises(IntegrityError, match="prompt_parts"), database.write() as session:
        session.execute(text("UPDATE usage SET input_tokens = prompt_tokens WHERE id = 'r'"))


def test_written_tokens_are_not_counted_inside_and_beside_input(database: Database) -> None:
    """BerriAI/litellm#6576: tokens written into a cache were input as well. Ours are on the create's row, once, and a row
    that writes has no prompt.
    """
    project = start(database)
    with database.write() as session:
        write(session, project, "c", tokens=1000)
        generate(session, project, "r", prompt=1020, cached=1000, cache_id="c", output=0)
    assert quantities(bill(database)) == {
        Meter.CACHE_WRITE_TOKENS: 1000,
        Meter.CACHE_READ_TOKENS: 1000,
        Meter.INPUT_TOKENS: 20,
    }
    with pytest.raises(IntegrityError, match="kind_meters"), database.write() as session:
        session.execute(
            text("UPDATE usage SET prompt_tokens = 1000, input_tokens = 1000 WHERE id = 'write:c'")
        )


def test_read_tokens_are_not_folded_into_input(database: Database) -> None:
    """BerriAI/litellm#15270: an engine's read tokens were added to its input. What our engine finds moves from input to what
    was read at one boundary, where the row is settled.
    """
    project = start(database)
    with database.write() as session:
        generate(session, project, "r", prompt=1300, cached=1000, implicit=256, cache_id="c", output=0)
    made = quantities(bill(database))
    assert made == {
        Meter.CACHE_READ_TOKENS: 1000,
        Meter.IMPLICIT_CACHE_READ_TOKENS: 256,
        Meter.INPUT_TOKENS: 44,
    }
    assert sum(made.values()) == 1300


def test_a_bill_that_was_right_once_does_not_become_wrong_later(database: Database) -> None:
    """BerriAI/litellm#11364: cached input was charged wrongly again many versions after it had been repaired. Golden bills
    stay here for ever, and are the same before and after they are rolled up.
    """
    golden = tomllib.loads(GOLDEN.read_text(encoding="utf-8"))["bill"]
    with database.write() as session:
        projects = [add_project(session, str(number)) for number in range(len(golden))]
        add_prices(
            session,
            *(
                book(
                    FREE | {Meter(name): price for name, price in each["prices"].items()}, project_id=project
                )
                for each, project in zip(golden, projects, strict=True)
            ),
        )
        for each, project in zip(golden, projects, strict=True):
            bring_about(session, project, each)
    for moment in (bring_up_to_date, faults):
        for each, project in zip(golden, projects, strict=True):
            made = bill(database, project_id=project)
            assert {meter: amount for meter, amount in amounts(made).items() if amount} == each["amounts"], (
                each
            )
            assert made.total.amount_nano_usd == each["total"], each
            assert made.total.without_cache_nano_usd == each["without_cache"], each
        assert not moment(database, LATE)


def bring_about(session: Session, project: str, golden: Mapping[str, Any]) -> None:
    """The cache that is written, and the request that reads another one."""
    read, kept = golden.get("read", 0), timedelta(seconds=golden.get("kept_seconds", 0))
    if "written" in golden:
        written = f"{project}-written"
        add_cache(session, project, written, tokens=golden["written"], end=MOMENT + kept)
        write(session, project, written, tokens=golden["written"])
    if "prompt" in golden:
        named = f"{project}-read" if read else None
        if named:
            add_cache(session, project, named, tokens=read, end=MOMENT)
        generate(
            session,
            project,
            f"{project}-request",
            prompt=golden["prompt"],
            cached=read,
            implicit=golden.get("implicit", 0),
            cache_id=named,
            output=golden.get("output", 0),
        )


def test_an_export_can_be_added_up_without_counting_a_token_twice(database: Database) -> None:
    """BerriAI/litellm#26919: an exporter sent input that included what was cached to a tool that added both. The lines of our
    CSV are parts, and add up to the prompts.
    """
    project = start(database)
    with database.write() as session:
        generate(session, project, "r1", prompt=1300, cached=1000, implicit=256, cache_id="c", output=7)
        generate(session, project, "r2", prompt=500, output=7)
    lines = list(csv.DictReader(report_csv(bill(database, Subject.CACHE))))
    assert sum(int(line["quantity"]) for line in lines if line["meter"] in [*PROMPT]) == 1800
    assert sum(int(line["amount_nano_usd"]) for line in lines) == total(database)


def test_the_total_of_input_is_not_that_of_input_and_cached_input(database: Database) -> None:
    """langfuse/langfuse#10592: a total of 35,720 was shown for a prompt of 17,903. Our report's parts add up to the prompt, and
    no line of it has a total of its own.
    """
    project = start(database, tokens=17_817)
    with database.write() as session:
        generate(session, project, "r", prompt=17_903, cached=17_817, cache_id="c", output=0)
    told = {line["meter"]: line["quantity"] for line in report_json(bill(database))["meters"]}
    assert sum(told[meter] for meter in PROMPT) == 17_903
    assert sum(told.values()) == 17_903


def test_a_count_that_nobody_knows_is_an_error_and_no_empty_breakdown(database: Database) -> None:
    """langfuse/langfuse#9482: a count arrived under a name that the breakdown did not know, and was left out of it. Meters are a
    closed list: an entry of another one is found, and no report passes over it.
    """
    project = start(database)
    with database.write() as session:
        generate(session, project, "r", prompt=10, output=0)
        session.execute(
            text(
                "INSERT INTO ledger_entries (project_id, dedupe_key, kind, debit, credit, meter, price_id, key_id, model, hour, "
                "period, quantity, amount_nano_usd, without_cache_nano_usd, posted_at) SELECT project_id, 'other', kind, debit, "
                "credit, 'cached_tokens', price_id, key_id, model, hour, period, 5, 0, 0, posted_at FROM ledger_entries"
            )
        )
    with database.read() as session:
        assert any(each.check == "meters_are_known" for each in verify(session, after(1)))
    with pytest.raises(ValueError, match="cached_tokens"):
        bill(database)


def test_time_and_tokens_are_not_mixed_in_one_number(database: Database) -> None:
    """getlago/lago#339: a metric weighted by time showed 0.6466 for one unit. Ours shows the tokens written and the
    token-seconds kept, each with its unit, both integers.
    """
    project = start(database)
    kept = timedelta(days=30) * 0.6466
    with database.write() as session:
        add_cache(session, project, "one", tokens=1, start=T0, end=T0 + kept)
        write(session, project, "one", tokens=1)
    meters = {line["meter"]: line for line in report_json(bill(database))["meters"] if line["quantity"]}
    assert {meter: (line["quantity"], line["unit"]) for meter, line in meters.items()} == {
        "cache_write_tokens": (1, "tokens"),
        "cache_storage_token_seconds": (int(kept.total_seconds()), "token-seconds"),
    }
