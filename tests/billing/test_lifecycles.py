"""However a cache lives and however the time is cut, its storage costs what exact fractions say, to the nano."""

import random
from itertools import pairwise

from hypothesis import given, settings

from billing import storage
from billing.charges import storage_charges
from billing.meters import Meter
from billing.periods import Period
from billing.prices import Prices
from billing.recompute import compare, recompute
from billing.report import report
from models import price as price_rows
from models.session import Database
from models.storage_segment import StorageSegment
from tests.billing.lives import DAY, MODEL, Life, expected, instant, lives, make_life, price
from tests.billing.rows import add_cache, add_project
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
        check_in_database(database, make_life(chance.randint))


def check_in_memory(life: Life) -> None:
    segment = StorageSegment(
        cache_id="c",
        project_id="p",
        model=MODEL,
        token_count=life.tokens,
        started_at=instant(life.start),
        ends_at=instant(life.end()),
    )
    prices = Prices([price(change) for change in life.changes])
    edges = [life.start - DAY, *life.cuts, LATER]
    quantity_so_far = owed_so_far = 0
    for start, end in pairwise(edges):
        charges = storage_charges(segment, Period(instant(start), instant(end)), prices)
        quantity_so_far += sum(charge.quantity for charge in charges)
        owed_so_far += sum(charge.amount_nano_usd for charge in charges)
        assert (quantity_so_far, owed_so_far) == expected(life, end)
    whole = storage_charges(segment, Period(instant(edges[0]), instant(LATER)), prices)
    assert sum(charge.amount_nano_usd for charge in whole) == owed_so_far


def check_in_database(database: Database, life: Life) -> None:
    """Each period is billed when it ends, knowing only what was known then; no later event may change its bill."""
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
    announced = sorted(life.changes, key=lambda change: change.at - change.stored_before)
    owed_so_far = 0
    edges = sorted({life.start - DAY, LATER, *life.cuts, *ends})
    for start, end in pairwise(edges):
        while announced and announced[0].at - announced[0].stored_before <= end:
            row = price(announced.pop(0))
            with database.write() as session:
                price_rows.insert(
                    session,
                    price_rows.Price(
                        model=row.model,
                        meter=row.meter,
                        effective_from=row.effective_from,
                        nano_usd_per_million=row.nano_usd_per_million,
                    ),
                )
        period = {"start": instant(start), "end": instant(end), "now": instant(end)}
        with database.read() as session:
            bill = report(session, **period, project_id=project_id)
            assert compare(bill, recompute(session, **period, project_id=project_id)) == []
        owed_so_far += bill.amount_nano_usd
        if end in ends:
            new_life, ends_at = ends[end]
            with database.write() as session:
                if new_life is None:
                    storage.close(session, "c", instant(ends_at))
                else:
                    storage.move_end(session, "c", instant(ends_at))
    quantity, owed = expected(life, LATER)
    assert owed_so_far == owed
    with database.read() as session:
        whole = report(session, start=instant(edges[0]), end=instant(LATER), now=instant(LATER))
    (line,) = (line for line in whole.lines if line.meter == Meter.CACHE_STORAGE_TOKEN_SECONDS)
    assert (line.quantity, line.amount_nano_usd) == (quantity, owed)
