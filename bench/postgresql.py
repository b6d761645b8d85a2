"""A PostgreSQL server of our own, for benchmarks and for tests, where its programs are on the machine."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import URL

USER = "headstart"  # not the superuser: what needs more than its own database is found out
# It is thrown away in minutes, and no disk is to be waited for.
CARELESS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
}
_KEEPER = Path(__file__).with_name("postgresql_keeper.py")
_DEBIANS = Path("/usr/lib/postgresql")  # not on the PATH, a folder for each version
_NUMBERS = count()


class NoServer(Exception):  # noqa: N818 - it is none
    """PostgreSQL's programs are missing, or a server did not start."""


def find_programs() -> Path | None:
    """The folder of the newest PostgreSQL on this machine; None where there is none."""
    newest = max(_DEBIANS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]), default=None)
    found = newest or shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


@contextmanager
def own_server(programs: Path, options: Mapping[str, str]) -> Iterator[Path]:
    """Start a server, give the folder that its socket lies in, and stop it on leaving; if we are killed, too.

    options: settings of the server by their names. Raises NoServer where it does not start.
    """
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, _KEEPER, programs, *(f"{name}={value}" for name, value in options.items())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        folder = keeper.stdout.readline().strip()
        if not folder:
            raise NoServer(f"PostgreSQL did not start:\n{keeper.stderr.read()}")
        _order(folder, sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(USER)))
        yield Path(folder)
        keeper.stdin.close()
        complaints = keeper.stderr.read()
        assert keeper.wait() == 0, complaints


def create_database(folder: Path) -> URL:
    """Make an empty database on the server whose socket lies in a folder."""
    name = f"bench_{next(_NUMBERS)}"
    order = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0")
    _order(str(folder), order.format(sql.Identifier(name), sql.Identifier(USER)))
    return URL.create("postgresql+psycopg", USER, database=name, query={"host": str(folder)})


def _order(folder: str, order: sql.Composed) -> None:
    with psycopg.connect(host=folder, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(order)
