"""A data folder, the servers that are started on it, and all that can be looked up in it."""

import base64
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from core.data_folder import database_path
from models.postgresql import postgresql_url
from models.session import Database, sqlite_url
from tests.cli.running import done
from tests.e2e.books import Books
from tests.e2e.customer import Customer
from tests.e2e.processes import START_SECONDS, Server, launch, wait_until

KV_SUFFIXES = {".kv", ".staging"}
_TOKEN_IDS = re.compile(rb'"token_ids":"([A-Za-z0-9+/]+={0,2})')
_FREE_PORTS = ("--port", "0", "--metrics-port", "0")


@dataclass
class Home:
    """A data folder, and how servers are started on it. Keys are remembered from the first start.

    before_start: called first in each server's process.
    """

    folder: Path
    settings: dict[str, str]
    before_start: Callable[[], None] | None = None
    project_key: str = ""
    operator_key: str = ""
    started: list[ForkServerProcess] = field(default_factory=list)
    customers: list[Customer] = field(default_factory=list)

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @cached_property
    def books(self) -> Books:
        address = self.settings.get("database_url")
        url = sqlite_url(database_path(self.data_dir)) if address is None else postgresql_url(address)
        return Books(Database(url, pool_size=1))

    def customer(self, server: Server) -> Customer:
        """The customer of the project "default"."""
        customer = Customer(server.address, self.project_key, self.books.project_id("default"))
        self.customers.append(customer)
        return customer

    def command(self, *args: str) -> str:
        """Run another `headstart` command on the data folder; gives what it printed."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HEADSTART_DATA_DIR", str(self.data_dir))
            if "database_url" in self.settings:
                environment.setenv("HEADSTART_DATABASE_URL", self.settings["database_url"])
            return done(*args)

    def start(self, *flags: str, **settings: object) -> Server:
        """Start a server and wait until it is ready. Settings are named like Settings' fields."""
        process, out, log = self.launch(flags, settings)
        wait_until(
            lambda: out.read_text().endswith("\n") or not process.is_alive(),
            "a server's start",
            START_SECONDS,
        )
        assert process.is_alive(), log.read_text()
        server = Server(process=process, log_path=log, **json.loads(out.read_text()))
        self.project_key = self.project_key or server.project_key or ""
        self.operator_key = self.operator_key or server.operator_key or ""
        return server

    def refused(self, *flags: str, **settings: object) -> str:
        """Start a server that must refuse to; gives its one message."""
        process, out, log = self.launch(flags, settings)
        process.join(START_SECONDS)
        assert (process.exitcode, out.read_text()) == (1, ""), log.read_text()
        errors = [line for line in log.read_text().splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, log.read_text()
        return errors[0].removeprefix("Error: ")

    def traces(self, *contents: bytes) -> list[str]:
        """Name the files in the data folder, and below it, that hold one of these; as token ids, KV files too."""
        found = []
        for path in self.data_dir.rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError):  # a server works in there
                held = path.read_bytes()
                if path.suffix in KV_SUFFIXES:
                    held += kv_token_ids(held)
                found += [path.name for content in contents if content in held]
        return found

    def close(self) -> None:
        """End what is left."""
        for process in self.started:
            if process.is_alive():
                process.kill()
                process.join()
        for customer in self.customers:
            customer.close()
        if "books" in vars(self):
            self.books.database.dispose()

    def launch(
        self, flags: tuple[str, ...], settings: dict[str, object]
    ) -> tuple[ForkServerProcess, Path, Path]:
        number = len(self.started)
        out, log = self.folder / f"{number}.out", self.folder / f"{number}.log"
        given = self.settings | {name: str(value) for name, value in settings.items()}
        arguments = ["serve", "--json-ready", "--data-dir", str(self.data_dir), *_FREE_PORTS, *flags]
        process = launch(arguments, given, out, log, self.before_start)
        self.started.append(process)
        return process, out, log


def kv_token_ids(held: bytes) -> bytes:
    """Those that a KV file names in its header, as far as it is written, packed as the database has them: there they are base64."""
    found = _TOKEN_IDS.search(held)
    return b"" if found is None else base64.b64decode(found[1][: len(found[1]) // 4 * 4])
