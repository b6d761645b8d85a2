"""`headstart serve` in processes of its own: started on a data folder, told to stop, or killed.

Each is forked from one process that has imported everything already: to import torch takes seconds, to fork nothing.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

START_SECONDS = 120
STOP_SECONDS = 20

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.e2e.warm"])


def run_apart(function: Callable[..., object], *args: object, **more: object) -> None:
    """Call a function in a process that has torch."""
    process = _FORKS.Process(target=function, args=args, kwargs=more, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0


def make_model(folder: Path, seed: int, **shape: int) -> None:
    from tests.tiny_models import tiny_model_folder

    tiny_model_folder(folder, "llama", seed=seed, **shape)


def wait_until(condition: Callable[[], object], what: str, within_seconds: float = 60) -> None:
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_seconds} s: {what}"
        time.sleep(0.005)


@dataclass
class Server:
    """A server that is ready."""

    process: ForkServerProcess
    address: str
    metrics_address: str
    project_key: str | None
    operator_key: str | None
    log_path: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def terminate(self) -> int:
        """Tell it to stop, and wait; gives the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        self.process.join(STOP_SECONDS)
        assert self.process.exitcode is not None, f"still there after {STOP_SECONDS} s"
        return self.process.exitcode

    def kill(self) -> None:
        """Take it away in the midst of whatever it does."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.join()


def launch(
    arguments: list[str],
    settings: dict[str, str],
    out: Path,
    log: Path,
    before: Callable[[], None] | None = None,
) -> ForkServerProcess:
    """Run `headstart` with settings named like Settings' fields, its output in two files.

    before: called first in its process.
    """
    out.touch()
    process = _FORKS.Process(target=_run, args=(arguments, settings, out, log, before), daemon=True)
    process.start()
    return process


def _run(
    arguments: list[str],
    settings: dict[str, str],
    out: Path,
    log: Path,
    before: Callable[[], None] | None,
) -> None:
    """What a shell would do: set the environment, redirect, call the command."""
    for name in [name for name in os.environ if name.startswith("HEADSTART_")]:
        del os.environ[name]
    os.environ.update({f"HEADSTART_{name.upper()}": value for name, value in settings.items()})
    for path, descriptor in ((out, 1), (log, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    if before is not None:
        before()
    from cli.main import app

    app(arguments)
