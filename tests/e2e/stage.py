"""A server that can be ended at any moment of a request, and is started again on what it leaves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from models.cache import Cache
from tests.e2e.customer import Customer
from tests.e2e.home import Home
from tests.e2e.moments import NEVER, watch
from tests.e2e.processes import STOP_SECONDS, Server, wait_until
from tests.e2e.truth import Truth

# Three chunks of a prompt are three moments in its midst. No sweeper: its commits would be counted with the request's.
# No automatic reuse: a request that is made again must compute again, or its moments would not come a second time.
SETTINGS = {
    "automatic_reuse": "False",
    "dtype": "float32",
    "threads": "1",
    "prefill_chunk_tokens": "200",
    "arena_bytes": str(2 << 20),
    "max_running_requests": "4",
    "sweep_interval_seconds": "60",
}
# Makes a request that is to end the server at the moment of this name.
Request = Callable[[str], object]


def make_quick_model(folder: Path) -> None:
    """Weights and a vocabulary so small that a server starts in no time."""
    from tests.prompting.folders import qwen_folder
    from tests.tiny_models import tiny_model_folder

    shape = {"hidden": 32, "heads": 2, "kv_heads": 1, "context_tokens": 1024, "vocab": 512}
    qwen_folder(tiny_model_folder(folder, "llama", seed=1, **shape))


@dataclass
class Stage:
    """truth: of the project "default", whose customer makes every request."""

    home: Home
    journal: Path
    truth: Truth = field(default_factory=Truth)

    def start(self) -> None:
        self.server: Server = self.home.start()
        self.customer: Customer = self.home.customer(self.server)

    def moments(self, request: Request) -> list[str]:
        """Make a request that nothing cuts off; gives its moments."""
        self.settle()
        request(NEVER)
        wait_until(lambda: "answered 1" in self._journal(), "the request is over")
        return self._journal()

    @contextmanager
    def cut_off(self, moment: str, request: Request) -> Iterator[range]:
        """End the server at a moment of a request and start it again; gives how many units of the request may be
        committed: but for a commit that was under way when something else was the moment, that is certain."""
        self.settle()
        with suppress(httpx.TransportError):
            request(moment)
        self.server.process.join(STOP_SECONDS)
        assert self.server.process.exitcode == -9, f"{moment!r} did not come\n{self.server.log()}"
        journal = self._journal()
        assert journal[-1] == moment
        committed = sum(line.startswith("committed ") for line in journal)
        begun = sum(line.startswith("commit ") for line in journal)
        least_and_most = range(committed, committed + 1 if moment.startswith("commit ") else begun + 1)
        try:
            self.start()
            yield least_and_most
        except AssertionError as error:
            error.add_note(f"after the end at {moment!r}; before it:\n{journal}")
            raise

    def check(self) -> None:
        self.truth.check(self.home, self.customer)

    def settle(self) -> None:
        """Wait until every live cache has its KV again, so that each commit to come is the next request's."""
        wait_until(
            lambda: all(self.customer.get(name).json()["tier"] == "RAM" for name in self.truth.live),
            "live caches are rebuilt",
        )

    def caches(self) -> list[Cache]:
        return self.home.books.caches(self.customer.project_id)

    def _journal(self) -> list[str]:
        return self.journal.read_text().splitlines()


def open_stage(folder: Path) -> Stage:
    journal = folder / "journal"
    model = {"model": str(folder / "tiny-llama-1"), "model_name": "tiny", "model_cache_dir": str(folder)}
    return Stage(Home(folder, SETTINGS | model, partial(watch, journal)), journal)
