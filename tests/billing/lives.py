"""Random lives of a cache, and what each owes according to nobody but this file: exact fractions, microseconds as integers."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from math import floor

from hypothesis import strategies as st

from billing.meters import Meter
from billing.price import ANY, Price
from billing.price_book import make_book

SECOND = 10**6  # in microseconds, in which instants are counted here
DAY = 86_400 * SECOND
BEGINNING = datetime(2026, 3, 31, 23, 59, 50, tzinfo=UTC)  # close to the end of a month
MODEL = "m"


@dataclass(frozen=True)
class Event:
    """Something that happens to a cache; None as the new life deletes it."""

    at: int
    new_life: int | None


@dataclass(frozen=True)
class Change:
    """A price that holds from a second on and is stored some time before."""

    at: int
    stored_before: int
    model: str
    nano_usd: int


@dataclass(frozen=True)
class Life:
    tokens: int
    start: int
    planned: int
    events: tuple[Event, ...]
    changes: tuple[Change, ...]
    cuts: tuple[int, ...]

    def ends(self) -> list[tuple[int, int | None, int]]:
        """Each event that finds the cache alive, with the end that it leaves behind: (at, new life, end)."""
        end = self.start + self.planned
        applied = []
        for event in self.events:
            if event.at < end:
                end = event.at if event.new_life is None else event.at + event.new_life
                applied.append((event.at, event.new_life, end))
                if event.new_life is None:
                    break
        return applied

    def end(self) -> int:
        applied = self.ends()
        return applied[-1][2] if applied else self.start + self.planned


def instant(micros: int) -> datetime:
    return BEGINNING + timedelta(microseconds=micros)


def prices(changes: Iterable[Change]) -> list[Price]:
    """What changes come to: each price ends where the next of its model begins."""
    meter = Meter.CACHE_STORAGE_TOKEN_SECONDS
    rows = [
        Price(ANY, change.model, meter, instant(change.at), None, change.nano_usd, id=number)
        for number, change in enumerate(changes, 1)
    ]
    return list(make_book("life", rows).prices)


def expected(life: Life, until: int) -> tuple[int, int]:
    """Token-seconds kept by an instant and nano-USD owed by then, one second after the other where that is short."""
    first, last = life.start // SECOND, min(life.end(), until) // SECOND
    seconds: dict[Change, int] = defaultdict(int)
    edges = sorted(
        {first, last} | {change.at // SECOND for change in life.changes if first < change.at // SECOND < last}
    )
    if last > first:
        for edge, following in pairwise(edges):
            seconds[_in_force(life, edge)] += following - edge
    owed = sum(
        floor(Fraction(life.tokens * kept, 3600) * Fraction(change.nano_usd, 10**6))
        for change, kept in seconds.items()
    )
    return life.tokens * sum(seconds.values()), owed


def _in_force(life: Life, second: int) -> Change:
    begun = [change for change in life.changes if change.at <= second * SECOND]
    own = [change for change in begun if change.model == MODEL]
    return max(own or begun, key=lambda change: change.at)


def make_life(pick: Callable[[int, int], int]) -> Life:
    """A life out of choices of an integer between two, both included: from nothing over moments to months."""

    def duration(least: int = 0) -> int:
        return pick(least, (3 * SECOND, 90 * SECOND, 40 * DAY)[pick(0, 2)])

    def nano_usd() -> int:
        return pick(0, (10, 10**12)[pick(0, 1)])

    start, planned = duration(), duration()

    def moment() -> int:
        return start + pick(0, planned + 5 * SECOND)

    events = {moment(): None if pick(0, 3) == 0 else duration(1) for _ in range(pick(0, 5))}
    changes = {(moment() // SECOND * SECOND, (MODEL, "*")[pick(0, 1)]): nano_usd() for _ in range(pick(0, 4))}
    return Life(
        tokens=pick(1, (100, 10**7)[pick(0, 1)]),
        start=start,
        planned=planned,
        events=tuple(Event(at, events[at]) for at in sorted(events)),
        changes=(
            Change(-DAY, DAY, "*", nano_usd()),
            *(Change(at, pick(1, 10 * SECOND), model, changes[at, model]) for at, model in sorted(changes)),
        ),
        cuts=tuple(sorted(moment() for _ in range(pick(0, 6)))),
    )


@st.composite
def lives(draw: st.DrawFn) -> Life:
    return make_life(lambda low, high: draw(st.integers(low, high)))
