"""However a cache lives and however the time is cut, its storage costs what exact fractions say, to the nano."""

import random
from datetime import datetime
from itertools import pairwise

from hypothesis import given, settings

from billing import storage
from billing.accrual import accrue
from billing.charges import storage_charges
from billing.meters import Meter
from billing.periods import Period
from billing.price_book import PriceBook
from billing.prices import store
from billing.report import Query, report
from billing.timelines import Prices
from billing.verify import verify
from models.session import Database
from models.storage_segment import StorageSegment
from tests.billing.lives import DAY, MODEL, Life, expected, instant, lives, make_life, prices
from tests.billing.rows import add_cache, add_project, bring_up_to_date
from tests.models.rows import clear

LATER = 200 * DAY  # every life is over


@settings(max_examples=500, deadline=None)
@given(lives())
def test_any_life_under_any_cut(life: Life) -> None:
    check_in_memory(life)


def test_five_thousand_lives_under_random_cuts() -> None:
    chance = random.Random(11)
    for _ in range(5000):
        check_in_memory(make_life(chance.randint))


def test_fifty_lives_as_they_happen_in_each_database(database: Database, kind: str) -> None:
    chance = random.Random(kind)  # others in each
    for _ in range(50):
        check_in_database(database, make_life(chance.randint), chance)


def check_in_memory(life: Life) -> None:
    segment = StorageSegment(
        cache_id="c",
        project_id="p",
        key_id="k",
        model=MODEL,
        token_count=life.tokens,
        started_at=instant(life.start),
        ends_at=instant(life.end()),
        accrued_until=instant(life.start),
    )
    known = Prices(prices(life.changes))
    edges = [life.start - DAY, *life.cuts, LATER]
    quantity_so_far = owed_so_far = 0
    for start, end in pairwise(edges):
        charges = storage_charges(segment, instant(start), instant(end), known)
        quantity_so_far += sum(charge.quantity for charge in charges)
        owed_so_far += sum(charge.amount_nano_usd for charge in charges)
        assert (quantity_so_far, owed_so_far) == expected(life, end)
    whole = storage_charges(segment, instant(edges[0]), instant(LATER), known)
    assert sum(charge.amount_nano_usd for charge in whole) == owed_so_far
    assert len({charge.dedupe_key for charge in whole}) == len(whole)


def check_in_database(database: Database, life: Life, chance: random.Random) -> None:
    """Reports and accrual come at random, knowing only what was known then; no later event may change what was posted."""
    clear(database)
    with database.write() as session:
        project_id = add_project(session, "p")
        add_cache(
            session,
            project_id,
            "c",
            tokens=life.tokens,
            model=MODEL,
            start=instant(life.start),
            end=instant(life.start + life.planned),
        )
    ends = {at: (new_life, end) for at, new_life, end in life.ends()}
    announced = {change.at - change.stored_before for change in life.changes}
    for at in sorted({life.start, *life.cuts, *ends, *announced, LATER}):
        known = [change for change in life.changes if change.at - change.stored_before <= at]
        with database.write() as session:
            store(session, PriceBook("life", tuple(prices(known))), instant(at))
        if at < life.start:
            continue
        if chance.random() < 0.5:
            with database.write() as session:
                accrue(session, instant(at), 10)
        assert billed(database, instant(at)) == expected(life, at)
        if at in ends:
            new_life, ends_at = ends[at]
            with database.write() as session:
                if new_life is None:
                    storage.close(session, "c", instant(ends_at))
                else:
                    storage.move_end(session, "c", instant(ends_at))
    bring_up_to_date(database, instant(LATER))
    assert billed(database, instant(LATER)) == expected(life, LATER)
    with database.read() as session:
        assert [each for each in verify(session, instant(LATER)) if each.check != "segments_are_lives"] == []


def billed(database: Database, now: datetime) -> tuple[int, int]:
    with database.read() as session:
        made = report(session, Query(Period(instant(-2 * DAY), instant(LATER + DAY))), now)
    line = made.total.lines[Meter.CACHE_STORAGE_TOKEN_SECONDS]
    return line.quantity, line.amount_nano_usd
