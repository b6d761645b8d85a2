"""Ways to call the server: every client that is tested, and plain HTTP, behind one small interface.

An operation is named as in google-genai (`caches.create`), its arguments are those of the SDK's method, with fields in
camelCase; what comes back is plain JSON values. An error is a Refusal, whoever raised it.
"""

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tests.conformance.plain_http import PlainHttp
from tests.conformance.refusal import Refusal
from tests.conformance.sdks import SDKS, Sdk

__all__ = ["DRIVERS", "Driver", "Refusal", "drivers"]

HERE = Path(__file__).parent


class Driver(Protocol):
    @property
    def name(self) -> str: ...

    def call(
        self, options: dict[str, Any], operation: str, arguments: dict[str, Any], leave_after: int = 0
    ) -> list[Any]:
        """Give what came: one result, or each that a list or stream yields. Raises Refusal.

        leave_after: how many of a stream's to take before it is left; 0 takes all.
        """
        ...

    def close(self) -> None: ...


@dataclass
class Agent:
    """A client in its own process; it is started when it is first needed, and answers one call at a time."""

    name: str
    sdk: Sdk
    program: str
    arguments: tuple[str, ...]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(
        self, options: dict[str, Any], operation: str, arguments: dict[str, Any], leave_after: int = 0
    ) -> list[Any]:
        wish = {
            "client": options,
            "operation": operation,
            "arguments": arguments,
            "leaveAfter": leave_after,
        }
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
        return subprocess.Popen(
            [*self.sdk.running(self.program), *self.arguments],
            cwd=self.sdk.folder,
            env={"PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )


def _agents() -> Iterator[Agent]:
    programs = {
        "python": (HERE / "agents" / "sdk_agent.py").read_text(encoding="utf-8"),
        "js": (HERE / "agents" / "sdk_agent.mjs").read_text(encoding="utf-8"),
    }
    for sdk in SDKS:
        if sdk.language == "js":
            yield Agent(sdk.name, sdk, programs["js"], ())
        else:
            for mode in ("sync", "aio"):
                yield Agent(f"{sdk.name}-{mode}", sdk, programs["python"], (mode,))


def drivers() -> dict[str, Driver]:
    """Make one of each, by name."""
    made: list[Driver] = [PlainHttp(), *_agents()]
    return {driver.name: driver for driver in made}


DRIVERS = tuple(drivers())
