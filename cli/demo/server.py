"""A `headstart serve` in a child process, with a data folder and a port of its own, stopped on leaving."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.errors import Unavailable

START_SECONDS = 180  # ten once the model is converted; converting it first takes some more
STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """What `headstart serve --json-ready` prints when it is ready."""

    address: str
    metrics_address: str
    project_key: str
    operator_key: str


@contextmanager
def running_server(data_dir: Path) -> Iterator[ServerAddress]:
    """Start, wait until ready, stop. The child's log is a file in the data folder."""
    headstart = str(Path(sys.executable).with_name("headstart"))
    log = data_dir / "serve.log"
    with log.open("w") as errors:
        child = subprocess.Popen(  # noqa: S603 - our own command
            [
                *(headstart, "serve", "--json-ready", "--data-dir", str(data_dir / "data")),
                *("--port", "0", "--metrics-port", "0"),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which then stops the child in order
        )
    try:
        yield read_address(child, log)
    finally:
        stop(child)


def read_address(child: "subprocess.Popen[str]", log: Path) -> ServerAddress:
    assert child.stdout is not None
    line = read_line(child.stdout.fileno(), START_SECONDS)
    if not line:
        stop(child)
        end_of_log = "\n".join(log.read_text().splitlines()[-15:])
        raise Unavailable(f"headstart serve did not become ready. Its log ends with:\n{end_of_log}")
    return ServerAddress(**json.loads(line))


def read_line(descriptor: int, within_seconds: float) -> str:
    """The first line of a pipe; empty where the pipe was closed or the time ran out before it was whole."""
    deadline = time.monotonic() + within_seconds
    read = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not read.endswith(b"\n"):
            if not selector.select(deadline - time.monotonic()):
                return ""
            piece = os.read(descriptor, 1)
            if not piece:
                return ""
            read += piece
    return read.decode()


def stop(child: "subprocess.Popen[str]") -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child.stdout is not None:
        child.stdout.close()
