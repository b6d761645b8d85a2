"""`bench billing`: random lives of caches, charged by billing and by an oracle that shares nothing with it."""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bench.billing.lives import numbered_life
from bench.billing.share import Place, check_in
from bench.billing.shares import Seen, check_all
from bench.billing.smallest import in_words, smallest
from bench.database import borrowed, migrate
from bench.machine import core_count
from bench.postgresql import CARELESS, NoServer, create_database, find_programs, own_server
from bench.progress import progress
from bench.report import rounded
from models.session import sqlite_url

SEED = 20261130
LIVES, STORED_LIVES = 1_000_000, 5_000
_QUICK_LIVES, _QUICK_STORED_LIVES = 2_000, 20
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it

Lives = Annotated[
    int | None, typer.Option(min=1, help=f"How many go through the pure functions. [default: {LIVES}]")
]
Stored = Annotated[
    int | None, typer.Option(min=0, help=f"How many go through each database. [default: {STORED_LIVES}]")
]
Quick = Annotated[bool, typer.Option("--quick", help="A few lives: shows that it works.")]
Seed = Annotated[int, typer.Option(help="The same seed makes the same lives.")]
Url = Annotated[
    str | None,
    typer.Option(
        help="An empty PostgreSQL database to use, emptied again. Without it a server is started where its programs are.",
        envvar="HEADSTART_BENCH_DATABASE_URL",
    ),
]


def billing_command(
    lives: Lives = None,
    stored: Stored = None,
    seed: Seed = SEED,
    *,
    quick: Quick = False,
    database_url: Url = None,
) -> None:
    """Random lives of caches: every charge against exact fractions, to the nano, in memory and in both databases."""
    count = lives or (_QUICK_LIVES if quick else LIVES)
    stored_count = (_QUICK_STORED_LIVES if quick else STORED_LIVES) if stored is None else stored
    found: dict[str, object] = {}
    is_right = True
    for place in Place:
        number = count if place is Place.MEMORY else stored_count
        if number == 0:
            continue
        try:
            with _places(place, database_url) as places:
                seen = _check(place, str(seed), number, places)
        except NoServer as error:
            typer.echo(f"{place} is left out: {error}", err=True)
            found[place] = {"left_out": str(error)}
            continue
        is_right &= not seen.differing
        found |= seen.as_json() if place is Place.MEMORY else {place: seen.as_json()}
    typer.echo(json.dumps(rounded({"benchmark": "billing", "seed": seed, "quick": quick, **found})))
    if not is_right:
        raise typer.Exit(1)


def _check(place: Place, seed: str, count: int, places: Sequence[str | None]) -> Seen:
    with progress(f"billing, {place}", count) as bar:
        seen = check_all(place, seed, count, places, lambda done: bar("lives", done))
    if seen.first is not None:
        number, what = seen.first
        sys.stderr.write(
            f"Life {number} of seed {seed} differs in {place}: {what}\nThe smallest such life:\n"
        )
        with check_in(place, places[0]) as check:
            life = smallest(numbered_life(seed, number), lambda each: check(each) is not None)
            last = check(life)
        sys.stderr.write(f"{in_words(life)}\n{last.what if last else ''}\n")
    return seen


@contextmanager
def _places(place: Place, database_url: str | None) -> Iterator[list[str | None]]:
    """For each process where its lives go. Raises NoServer where there is no PostgreSQL."""
    if place is Place.MEMORY:
        yield [None] * core_count()
        return
    with ExitStack() as kept:
        if place is Place.SQLITE:
            in_memory = _IN_MEMORY if _IN_MEMORY.is_dir() else None  # every commit waits for its disk
            folder = Path(
                kept.enter_context(tempfile.TemporaryDirectory(prefix="headstart-bench-", dir=in_memory))
            )
            urls = [sqlite_url(folder / f"{index}.sqlite3") for index in range(core_count())]
        elif database_url is not None:
            urls = [kept.enter_context(borrowed(database_url))]
        else:
            programs = find_programs()
            if programs is None:
                raise NoServer(
                    "PostgreSQL's programs are not on this machine; install them, or name --database-url."
                )
            server = kept.enter_context(own_server(programs, CARELESS))
            urls = [create_database(server) for _ in range(core_count())]
        for url in urls:
            migrate(url)
        yield [url.render_as_string(hide_password=False) for url in urls]
