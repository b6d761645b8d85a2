"""`bench billing` finds faults, tells them by the smallest life that has them, and counts what it has checked."""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from bench.billing import command, in_database, in_memory
from bench.billing.command import billing_command
from bench.billing.lives import Ask, Create, Life, numbered_life
from bench.billing.share import Place, check_in
from bench.billing.shares import Seen, check_all
from bench.billing.smallest import in_words, smallest
from billing import charges, corrections, differences, ledger, rating, storage, usage
from billing.price import Price
from billing.rating import Rates
from models.session import Database

PRICES = numbered_life("tests", 0).prices


def _round_up(tokens: int, price: int) -> int:
    return -(-tokens * price // 10**6)


def _round_each_hour(tokens: int, elapsed: range, price: int) -> int:
    return tokens * len(elapsed) * price // (3600 * 10**6)


def _holds_at_its_end(price: Price, at: Any) -> bool:
    return price.effective_from <= at and (price.effective_to is None or at <= price.effective_to)


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (charges, "token_charge", _round_up),
        (charges, "storage_charge", _round_each_hour),
        (charges, "whole_second", lambda at: at + timedelta(seconds=at.microsecond > 0)),
        (ledger, "month_of", lambda at: f"{at - timedelta(hours=1):%Y-%m}"),
        (rating, "READ_METERS", ()),
        (Price, "holds_at", _holds_at_its_end),
        (differences, "token_charge", _round_up),
        (differences, "storage_floor", lambda quantity, price: 1 + quantity * price // (3600 * 10**6)),
        (in_memory, "at_amount", lambda _meter, stands, amount: stands._replace(amount_nano_usd=amount)),
        (in_memory, "storage_charges", lambda *_: []),
    ],
)
def test_faults_are_found_in_memory(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, fault: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, fault)
    with check_in(Place.MEMORY, None) as check:
        assert any(check(numbered_life("faults", number)) for number in range(1_000))


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (usage, "_charge", lambda _session, _row: None),
        (corrections, "_rates", lambda _session, _charge: Rates(10**6, 10**6)),
        (storage, "last_event", lambda _session, _cache_id: None),
    ],
)
def test_faults_are_found_in_each_database(
    database: Database, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, fault: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, fault)
    assert any(_is_found(database, number) for number in range(300))


def _is_found(database: Database, number: int) -> bool:
    """By a difference, or by an error."""
    try:
        return in_database.difference(database, numbered_life("faults", number)) is not None
    except Exception:  # noqa: BLE001 - whatever it is
        return True


def test_the_smallest_life_has_nothing_that_it_does_not_need() -> None:
    def differs(life: Life) -> bool:
        created = any(isinstance(step, Create) and step.tokens >= 7 for step in life.steps)
        return created and any(isinstance(step, Ask) and step.output > 0 for step in life.steps)

    life = next(filter(differs, (numbered_life("tests", number) for number in range(1_000))))
    found = smallest(life, differs)
    assert differs(found)
    assert len(found.steps) == 2
    assert "deliveries=1" in in_words(found)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(billing_command)
    return CliRunner().invoke(app, arguments)


@pytest.mark.long
def test_the_command_prints_what_it_has_seen() -> None:
    result = run("--lives", "60", "--stored", "4", "--seed", "5")
    assert result.exit_code == 0, result.output
    seen = json.loads(result.stdout.splitlines()[-1])
    assert (seen["benchmark"], seen["seed"]) == ("billing", 5)
    for figures, count in ((seen, 60), (seen["sqlite"], 4), (seen["postgresql"], 4)):
        assert (figures["lifecycles"], figures["differing"], figures["difference_nano"]) == (count, 0, 0)
        assert figures["lifecycles_per_s"] > 0


@pytest.mark.long
def test_without_postgresql_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_programs", lambda: None)
    result = run("--lives", "2", "--stored", "1")
    assert result.exit_code == 0
    assert (
        "programs are not on this machine"
        in json.loads(result.stdout.splitlines()[-1])["postgresql"]["left_out"]
    )


def test_a_difference_ends_with_status_1_and_the_smallest_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        command, "check_all", lambda *_: Seen(3, 1.0, differing=1, nano_usd=7, first=(2, "what"))
    )
    result = run("--lives", "3", "--stored", "0", "--seed", "9")
    assert result.exit_code == 1
    assert "Life 2 of seed 9 differs in memory: what" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["difference_nano"] == 7


def test_a_process_that_ends_early_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended early"):
        check_all(Place.MEMORY, "s", 10, [None], lambda _: None)
