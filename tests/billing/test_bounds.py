"""What is held is never less than what is charged, whatever happens in between; and of a planned life it is exactly that."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from billing.bounds import most_of_request, most_of_storage, storage_to_come
from billing.charges import storage_charges, usage_charges
from billing.meters import GENERATE_METERS, Meter
from billing.months import month_of
from billing.price import ANY, Price
from billing.price_book import make_book
from billing.timelines import Prices
from models.cache import Cache
from models.storage_segment import StorageSegment
from models.usage import Usage, UsageState
from tests.billing.rows import LONG_AGO, MODEL, T0

AMOUNTS = st.integers(0, 10**7) | st.integers(0, 10**13)
TOKENS = st.integers(0, 50) | st.integers(0, 10**6)
SECOND = 10**6  # in microseconds
DURATIONS = st.integers(0, 3 * SECOND) | st.integers(0, 90 * SECOND) | st.integers(0, 40 * 86_400 * SECOND)


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


@dataclass(frozen=True)
class Plan:
    """A cache that is to live from start to end, in microseconds, and what keeping it costs meanwhile."""

    tokens: int
    start: int
    end: int
    prices: Prices

    def segment(self, start: int, posted: int) -> StorageSegment:
        """As it is once it began at `start` and is posted up to an instant."""
        return StorageSegment(
            cache_id="c",
            project_id="p",
            key_id="k",
            model=MODEL,
            token_count=self.tokens,
            started_at=instant(start),
            ends_at=instant(self.end),
            accrued_until=instant(min(max(posted, start), self.end)),
        )


def instant(micros: int) -> datetime:
    """Counted from close to the end of a month."""
    return datetime(2026, 3, 31, 23, 59, 50, tzinfo=UTC) + timedelta(microseconds=micros)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    start = draw(DURATIONS)
    end = start + draw(DURATIONS)
    seconds = st.integers(start // SECOND, end // SECOND + 1)
    changes = draw(st.dictionaries(st.tuples(st.sampled_from([MODEL, ANY]), seconds), AMOUNTS, max_size=4))
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    prices = [
        Price(ANY, ANY, meter, LONG_AGO, None, draw(AMOUNTS)),
        *(
            Price(ANY, model, meter, instant(at * SECOND), None, rate)
            for (model, at), rate in changes.items()
        ),
    ]
    tokens = draw(st.integers(1, 100) | st.integers(1, 10**7))
    return Plan(tokens, start, end, Prices(make_book("test", prices).prices))


@given(plans(), DURATIONS)
def test_what_is_planned_of_a_life_is_what_will_be_posted_month_by_month(plan: Plan, posted: int) -> None:
    found = plan.segment(plan.start, plan.start + posted)
    expected: dict[str, int] = {}
    for charge in storage_charges(found, found.accrued_until, found.ends_at, plan.prices):
        month = month_of(charge.hour)
        expected[month] = expected.get(month, 0) + charge.amount_nano_usd
    assert dict(storage_to_come(found, plan.prices)) == expected


@given(plans(), DURATIONS)
def test_a_life_that_begins_later_than_asked_for_costs_no_more_in_any_month(plan: Plan, late: int) -> None:
    cache = Cache(
        project_id="p",
        model=MODEL,
        token_count=plan.tokens,
        created_at=instant(plan.start),
        expire_at=instant(plan.end),
    )
    most = most_of_storage(cache, plan.prices)
    begun = plan.segment(min(plan.start + late, plan.end), 0)
    for month, amount in storage_to_come(begun, plan.prices).items():
        assert amount <= most[month]
