"""What is held is never less than what is charged, whatever happens in between; and of a planned life it is exactly that."""

from datetime import timedelta
from itertools import pairwise

from hypothesis import given, strategies as st

from billing.bounds import most_of_request, most_of_storage, storage_to_come
from billing.charges import storage_charges, usage_charges
from billing.meters import GENERATE_METERS
from billing.months import by_month, end_of, month_of
from billing.price import ANY, Price
from billing.timelines import Prices
from models.cache import Cache
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState
from tests.billing.lives import MODEL, Life, instant, lives, prices
from tests.billing.rows import LONG_AGO, T0

AMOUNTS = st.integers(0, 10**7) | st.integers(0, 10**13)
TOKENS = st.integers(0, 50) | st.integers(0, 10**6)


@given(st.data())
def test_no_request_costs_more_than_is_held_for_it(data: st.DataObject) -> None:
    rates = {meter: data.draw(AMOUNTS) for meter in GENERATE_METERS}
    held = Prices(
        Price(ANY, ANY, meter, LONG_AGO, None, rate, number)
        for number, (meter, rate) in enumerate(rates.items(), 1)
    )
    cached, computed, most = data.draw(TOKENS), data.draw(TOKENS), data.draw(TOKENS)
    row = Usage(
        id="r",
        project_id="p",
        key_id="k",
        model="m",
        state=UsageState.RESERVED,
        prompt_tokens=cached + computed,
        cache_read_tokens=cached,
        input_tokens=computed,
        implicit_cache_tokens=0,
        cache_write_tokens=0,
        output_tokens=0,
        most_output_tokens=most,
        created_at=T0,
    )
    bound = most_of_request(row, held)
    implicit = data.draw(st.integers(0, computed))
    row.implicit_cache_tokens = implicit
    row.cache_read_tokens += implicit
    row.input_tokens -= implicit
    row.output_tokens = data.draw(st.integers(0, most))
    row.occurred_at = T0 + timedelta(hours=1)
    assert sum(charge.amount_nano_usd for charge in usage_charges(row, held)) <= bound


def segment(life: Life, posted: int) -> StorageSegment:
    start, end = life.start, life.end()
    return StorageSegment(
        cache_id="c",
        project_id="p",
        key_id="k",
        model=MODEL,
        token_count=life.tokens,
        started_at=instant(start),
        ends_at=instant(end),
        accrued_until=instant(min(max(posted, start), end)),
    )


@given(lives(), st.integers(0, 50 * 86_400 * 10**6))
def test_what_is_planned_of_a_life_is_what_will_be_posted_month_by_month(life: Life, posted: int) -> None:
    found, held = segment(life, posted), Prices(prices(life.changes))
    expected: dict[str, int] = {}
    for charge in storage_charges(found, found.accrued_until, found.ends_at, held):
        month = month_of(charge.hour)
        expected[month] = expected.get(month, 0) + charge.amount_nano_usd
    assert dict(storage_to_come(found, held)) == expected


@given(lives(), st.integers(0, 90 * 10**6))
def test_a_life_that_begins_later_than_asked_for_costs_no_more_in_any_month(life: Life, late: int) -> None:
    held = Prices(prices(life.changes))
    expire = life.start + life.planned
    cache = Cache(
        project_id="p",
        model=MODEL,
        token_count=life.tokens,
        created_at=instant(life.start),
        expire_at=instant(expire),
    )
    most = most_of_storage(cache, held)
    begun = segment(life, 0)
    begun.started_at = begun.accrued_until = instant(min(life.start + late, expire))
    begun.ends_at = instant(expire)
    for month, amount in storage_to_come(begun, held).items():
        assert amount <= most[month]


def test_months_tile_whatever_they_cut() -> None:
    start, end = T0, T0 + timedelta(days=400)
    pieces = list(by_month(start, end))
    assert (pieces[0][1], pieces[-1][2], len(pieces)) == (start, end, 14)
    for (month, _, until), (_, begin, _) in pairwise(pieces):
        assert until == begin == end_of(month)
    assert list(by_month(end, end)) == []
