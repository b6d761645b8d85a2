"""Random lives of a cache: what is done to it and to its prices, step by step, by a clock that is set back at times.

Instants are integers: microseconds after `BEGINNING`. Nothing of the billing that is checked is known here.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

SECOND = 10**6
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
BEGINNING = datetime(2026, 3, 31, 23, 59, 50, tzinfo=UTC)  # close to the end of a month
ANY = "*"
PROJECT, MODEL = "own", "m"
# The least that input costs, and the most that a read does: a price book in which a hit is dearer than none is refused.
DEAREST_READ = 1_000
STORAGE, WRITE = "cache_storage_token_seconds", "cache_write_tokens"
INPUT, OUTPUT = "input_tokens", "output_tokens"
READ, IMPLICIT = "cache_read_tokens", "implicit_cache_read_tokens"
METERS = (STORAGE, WRITE, INPUT, OUTPUT, READ, IMPLICIT)


@dataclass(frozen=True, slots=True)
class Change:
    """A price that holds from a second on: until the next of its project, model and meter, or until its own end."""

    at: int
    until: int | None
    project: str
    model: str
    meter: str
    nano_usd: int

    @property
    def subject(self) -> tuple[str, str, str]:
        return self.project, self.model, self.meter


@dataclass(frozen=True, slots=True)
class Create:
    """Only the first counts: a life is that of one cache."""

    at: int
    tokens: int
    ttl: int


@dataclass(frozen=True, slots=True)
class Move:
    """The cache is to live so long from now on, be that longer or shorter than it was to."""

    at: int
    ttl: int


@dataclass(frozen=True, slots=True)
class Delete:
    at: int


@dataclass(frozen=True, slots=True)
class Sweep:
    at: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, of the cache where is_named, that ends after so long: by a clock that was set back, before it began.

    deliveries: how often its end is told; 0: it ends unbilled.
    """

    at: int
    takes: int
    is_named: bool
    suffix: int
    implicit: int
    output: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The books are brought up to date, so many times at once."""

    at: int
    times: int


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody asks for the bill so far."""

    at: int


@dataclass(frozen=True, slots=True)
class Close:
    """All months that are over are closed."""

    at: int


@dataclass(frozen=True, slots=True)
class Correct:
    """A charge on record is to be so many eighths of what it was: of its quantity, at its price, or of its amount alone."""

    at: int
    pick: int
    eighths: int
    is_of_amount: bool


@dataclass(frozen=True, slots=True)
class Announce:
    """Prices that are yet to come are put into the book."""

    at: int
    changes: tuple[Change, ...]


Step = Create | Move | Delete | Sweep | Ask | Keep | Look | Close | Correct | Announce


@dataclass(frozen=True, slots=True)
class Life:
    """prices: those that hold from long before it began. steps: in the order in which they happen, whatever the clock says."""

    prices: tuple[Change, ...]
    steps: tuple[Step, ...]

    @property
    def changes(self) -> list[Change]:
        """Every price that there ever is."""
        announced = [step.changes for step in self.steps if isinstance(step, Announce)]
        return [*self.prices, *(change for changes in announced for change in changes)]


Pick = Callable[[int, int], int]


def numbered_life(seed: str, number: int) -> Life:
    return make_life(random.Random(f"{seed}/{number}").randint)  # noqa: S311 - lives, no secrets


def make_life(pick: Pick) -> Life:
    """A life out of choices of an integer between two, both included."""
    clock = newest = pick(0, _duration(pick))
    steps: list[Step] = []
    book = _Book(pick)
    created_at = pick(0, 9) // 8 * pick(0, 4)  # mostly first
    for number in range(created_at + pick(1, 12)):
        if number == created_at:
            steps.append(Create(clock, pick(1, (100, 10**7)[pick(0, 1)]), max(1, _duration(pick))))
        else:
            steps.append(_step(pick, clock, newest, book))
        clock = _set_back(pick, clock) if pick(0, 9) == 0 else clock + _duration(pick)
        newest = max(newest, clock)
    return Life(book.first, tuple(steps))


def _duration(pick: Pick) -> int:
    """From nothing over moments and hours to, seldom, weeks."""
    kind = pick(0, 63)
    return pick(
        0, 3 * SECOND if kind < 16 else 90 * 60 * SECOND if kind < 57 else 2 * DAY if kind < 63 else 40 * DAY
    )


def _set_back(pick: Pick, clock: int) -> int:
    """By a while, or to where all began, in a month that may be closed by now."""
    return pick(0, 9 * SECOND) if pick(0, 2) == 0 else max(0, clock - _duration(pick))


def _step(pick: Pick, clock: int, newest: int, book: "_Book") -> Step:
    kind = pick(0, 19)
    if kind < 7:
        takes = _duration(pick) * (-1 if pick(0, 9) == 0 else 1)
        suffix = pick(0, (3, 9_000)[pick(0, 1)])
        implicit = pick(0, suffix) if pick(0, 2) == 0 else 0
        return Ask(clock, takes, pick(0, 3) > 0, suffix, implicit, pick(0, 700), pick(0, 3))
    if kind < 9:
        return Move(clock, max(1, _duration(pick)))
    if kind < 12:
        return Keep(clock, pick(1, 2))
    if kind < 14:
        return Announce(clock, book.announce(newest))
    if kind == 14:
        return Correct(clock, pick(0, 99), pick(0, (9, 99)[pick(0, 1)]), pick(0, 3) == 0)
    plain: tuple[Step, ...] = (Look(clock), Close(clock), Close(clock), Delete(clock), Sweep(clock))
    return plain[kind - 15]


class _Book:
    """Prices that make a book: none overlaps another of its project, model and meter."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self.first = tuple(Change(-DAY, None, ANY, ANY, meter, self._nano_usd(meter)) for meter in METERS)
        self._busy_until: dict[tuple[str, str, str], int] = {}

    def announce(self, newest: int) -> tuple[Change, ...]:
        """newest: what no clock has passed yet."""
        pick, made = self._pick, []
        for _ in range(pick(1, 3)):
            at = (newest // SECOND + 1) * SECOND + _duration(pick) // SECOND * SECOND
            meter = METERS[pick(0, 1) and pick(0, len(METERS) - 1)]
            project, model = (ANY, PROJECT, "other")[pick(0, 2)], (ANY, MODEL)[pick(0, 1)]
            is_for_all = (project, model) == (ANY, ANY)
            until = None if is_for_all or pick(0, 2) else at + SECOND + _duration(pick) // SECOND * SECOND
            change = Change(at, until, project, model, meter, self._nano_usd(meter))
            if at > self._busy_until.get(change.subject, -DAY):
                self._busy_until[change.subject] = at if until is None else until - 1
                made.append(change)
        return tuple(made)

    def _nano_usd(self, meter: str) -> int:
        if meter in (READ, IMPLICIT):
            return self._pick(0, DEAREST_READ)
        return self._pick(DEAREST_READ, (10**6, 10**12)[self._pick(0, 1)])
