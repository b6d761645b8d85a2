"""A share of all lives, checked by a process of its own that says line by line how far it is: JSON, on stdout.

`python -m bench.billing.share PLACE SEED FIRST STEP COUNT [URL]`: lives FIRST, FIRST + STEP, and so on, COUNT of them.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from sqlalchemy import make_url

from bench.billing import in_database, in_memory
from bench.billing.entries import Difference
from bench.billing.lives import Life, numbered_life
from models.session import Database

_LIVES_A_LINE = {"memory": 500, "sqlite": 20, "postgresql": 20}
_MOST_DIFFERENCES = 10

Check = Callable[[Life], Difference | None]


class Place(StrEnum):
    """What the lives go through."""

    MEMORY = "memory"  # the pure functions
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@contextmanager
def check_in(place: Place, url: str | None) -> Iterator[Check]:
    """What checks a life there; an error is a difference. url: of a database with every table that may be emptied."""
    if place is Place.MEMORY:
        yield lambda life: _told(in_memory.difference, life)
        return
    assert url is not None
    database = Database(make_url(url), pool_size=1)
    try:
        yield lambda life: _told(lambda each: in_database.difference(database, each), life)
    finally:
        database.dispose()


def _told(difference: Check, life: Life) -> Difference | None:
    try:
        return difference(life)
    except Exception as error:  # noqa: BLE001 - whatever it is, this life has found it
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Difference(0, f"{type(error).__name__} in {where.name}: {error}")


def main(place: Place, seed: str, numbers: range, url: str | None) -> None:
    found = 0
    with check_in(place, url) as check:
        for done, number in enumerate(numbers, 1):
            difference = check(numbered_life(seed, number))
            if difference is not None:
                found += 1
                _say(number=number, nano_usd=difference.nano_usd, what=difference.what)
            if done % _LIVES_A_LINE[place] == 0 or done == len(numbers) or found == _MOST_DIFFERENCES:
                _say(done=done)
            if found == _MOST_DIFFERENCES:
                return


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    first, step, count = map(int, arguments[2:5])
    main(
        Place(arguments[0]),
        arguments[1],
        range(first, first + step * count, step),
        arguments[5] if len(arguments) > 5 else None,
    )
