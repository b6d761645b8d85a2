"""What of a life happens, and at which instant it counts as having happened: by these rules alone, not by code that is checked.

A clock that is set back puts no change of a cache before its last change, its last use, or what is posted of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.billing.lives import HOUR, Ask, Close, Correct, Create, Delete, Keep, Life, Look, Move, Step, Sweep
from bench.billing.months import hour_start, month_of, next_month


@dataclass(frozen=True, slots=True)
class Written:
    at: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Used:
    """number: of the step. named: tokens of the cache. times: how often its end is told."""

    number: int
    created: int
    occurred: int
    named: int
    suffix: int
    implicit: int
    output: int
    times: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Storage of the cache, that began at `first` and is to end at `last`, from start to end. now: by the clock."""

    first: int
    last: int
    tokens: int
    start: int
    end: int
    now: int
    times: int


@dataclass(frozen=True, slots=True)
class Closed:
    month: str


@dataclass(frozen=True, slots=True)
class Corrected:
    pick: int
    eighths: int
    is_of_amount: bool
    now: int


@dataclass(frozen=True, slots=True)
class Looked:
    """kept: what storage has come to owe so far and is not posted yet."""

    kept: Kept | None


Fact = Written | Used | Kept | Closed | Corrected | Looked


@dataclass(slots=True)
class _Cache:
    tokens: int
    first: int
    last: int
    changed: int
    used: int
    posted: int
    is_over: bool = False

    def is_usable(self, at: int) -> bool:
        return not self.is_over and at < self.last


@dataclass(slots=True)
class _State:
    cache: _Cache | None = None
    closed: set[str] = field(default_factory=set)


def history(life: Life) -> list[list[Fact]]:
    """The facts of each step, and those of the end, at which all that is due is posted."""
    state = _State()
    happened = [list(_facts(state, number, step)) for number, step in enumerate(life.steps)]
    return [*happened, list(_keep(state.cache, last_instant(life), 1))]


def last_instant(life: Life) -> int:
    """When the cache has ended, whatever becomes of it, and no step is left."""
    longest = max((step.ttl for step in life.steps if isinstance(step, Create | Move)), default=0)
    return max((step.at for step in life.steps), default=0) + longest + HOUR


def _facts(state: _State, number: int, step: Step) -> Iterator[Fact]:
    cache = state.cache
    match step:
        case Create():
            if cache is None:
                at = step.at
                state.cache = _Cache(step.tokens, at, at + step.ttl, changed=at, used=at, posted=at)
                yield Written(at, step.tokens)
        case Ask():
            yield from _ask(cache, number, step)
        case Keep():
            yield from _keep(cache, step.at, step.times)
        case Look():
            yield Looked(_due(cache, step.at, step.at, 1))
        case Close():
            yield from _keep(cache, step.at, 1)
            yield from _close(state.closed, step.at)
        case Correct():
            yield Corrected(step.pick, step.eighths, step.is_of_amount, step.at)
        case Move() | Delete() | Sweep():
            _change(cache, step)


def _ask(cache: _Cache | None, number: int, step: Ask) -> Iterator[Fact]:
    created, named = step.at, 0
    if step.is_named:
        if cache is None or not cache.is_usable(max(step.at, cache.changed)):
            return
        created, named = max(step.at, cache.changed), cache.tokens
        cache.used = max(cache.used, created)
    if step.deliveries:
        occurred = max(created, step.at + step.takes)
        yield Used(number, created, occurred, named, step.suffix, step.implicit, step.output, step.deliveries)


def _change(cache: _Cache | None, step: Move | Delete | Sweep) -> None:
    if cache is None or cache.is_over:
        return
    if isinstance(step, Sweep):
        cache.is_over = step.at >= cache.last
        return
    now = max(step.at, cache.changed, cache.used, cache.posted)
    if cache.is_usable(now):
        cache.changed = now
        cache.is_over = isinstance(step, Delete)
        cache.last = now if isinstance(step, Delete) else now + step.ttl


def _keep(cache: _Cache | None, at: int, times: int) -> Iterator[Kept]:
    """Post to the cache's end where that has passed, else to the last whole hour."""
    if cache is not None:
        kept = _due(cache, cache.last if cache.last <= at else hour_start(at), at, times)
        if kept is not None:
            cache.posted = kept.end
            yield kept


def _due(cache: _Cache | None, until: int, now: int, times: int) -> Kept | None:
    if cache is None or min(until, cache.last) <= cache.posted:
        return None
    return Kept(cache.first, cache.last, cache.tokens, cache.posted, min(until, cache.last), now, times)


def _close(closed: set[str], at: int) -> Iterator[Closed]:
    """A month can be closed an hour after it is over."""
    month = month_of(0)
    while month < month_of(at - HOUR):
        if month not in closed:
            closed.add(month)
            yield Closed(month)
        month = next_month(month)
