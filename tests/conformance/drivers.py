"""Ways to call the server: every client that is tested, and plain HTTP, behind one small interface.

An operation is named as in google-genai (`caches.create`), its arguments are those of the SDK's method, with fields in
camelCase; what comes back is plain JSON values. An error is a Refusal, whoever raised it.
"""

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
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

    def open(self) -> None:
        """Make it ready for calls, where it is not yet."""
        ...

    def close(self) -> None: ...


@dataclass
class Agent:
    """A client in its own process, which answers one call at a time."""

    name: str
    sdk: Sdk
    program: str
    arguments: tuple[str, ...]
    _process: subprocess.Popen[str] | None = None
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

    def open(self) -> None:
        """Start it, and wait until the SDK is imported: that takes seconds, and is no part of a call."""
        if self._process is None:
            self._process = subprocess.Popen(
                [*self.sdk.running(self.program), *self.arguments],
                cwd=self.sdk.folder,
                env={"PATH": "/usr/bin:/bin"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
            assert self._read(self._process) == "ready\n"

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=20)
            assert self._process.returncode == 0

    def _asked(self, line: str) -> str:
        assert self._process is not None, "open() comes first"
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read(self._process)

    def _read(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{self.name} ended with status {process.wait()}; its messages are above"
        return line


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
