"""The other end of a contestant's process: calls travel as JSON lines, one at a time, so that never two engines compute."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter

from bench.contestant import Asked, Description, FannedOut, Held, Kept, KeptBeside
from bench.workload import Document, Prompt

STOP_SECONDS = 30
LOG_LINES = 20


class ContestantFailed(Exception):  # noqa: N818 - reads as what happened
    """A contestant's process has ended; the message has the end of its log."""


class Remote:
    """A contestant in a process of its own."""

    def __init__(self, name: str, child: "subprocess.Popen[str]", log: Path) -> None:
        self.name = name
        self._child = child
        self._log = log
        self.description = TypeAdapter(Description).validate_python(self._read())

    def keep(self, document: Document) -> Kept:
        return TypeAdapter(Kept).validate_python(self._call("keep", document=asdict(document)))

    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        answer = self._call("ask", prompt=asdict(prompt), output_tokens=output_tokens)
        return TypeAdapter(Asked).validate_python(answer)

    def fan_out(self, prompts: list[Prompt], output_tokens: int) -> FannedOut:
        answer = self._call(
            "fan_out", prompts=[asdict(prompt) for prompt in prompts], output_tokens=output_tokens
        )
        return TypeAdapter(FannedOut).validate_python(answer)

    def keep_too(self, document: Document) -> Kept:
        return TypeAdapter(Kept).validate_python(self._call("keep_too", document=asdict(document)))

    def forget(self, document: Document) -> None:
        self._call("forget", document=asdict(document))

    def held(self) -> Held:
        return TypeAdapter(Held).validate_python(self._call("held"))

    def keep_beside(
        self, document: Document, prompts: list[Prompt], streams: int, output_tokens: int
    ) -> KeptBeside:
        kept = self._call(
            "keep_beside",
            document=asdict(document),
            prompts=[asdict(prompt) for prompt in prompts],
            streams=streams,
            output_tokens=output_tokens,
        )
        return TypeAdapter(KeptBeside).validate_python(kept)

    def _call(self, name: str, **arguments: Any) -> Any:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None
        return self._read()

    def _read(self) -> Any:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise self._failed()
        return json.loads(line)

    def _failed(self) -> ContestantFailed:
        self._child.wait(STOP_SECONDS)
        end = "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
        return ContestantFailed(f"{self.name} ended with status {self._child.returncode}:\n{end}")


@contextmanager
def remote(name: str, home: Path | None = None) -> Iterator[Remote]:
    """Start a contestant, wait until it is ready, end it on leaving.

    home: a folder for what it keeps, of those that have such a thing; it finds there what an earlier one has kept.
    """
    with TemporaryDirectory(prefix="headstart-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("w") as errors:
            child = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "bench.child", name, *([] if home is None else [str(home)])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the benchmark alone, which then ends it in order
            )
        try:
            yield Remote(name, child, log)
        finally:
            _end(child)


def _end(child: "subprocess.Popen[str]") -> None:
    """Its stdin closes, and it leaves by itself; it is killed where it does not."""
    with child:  # closes the pipes
        if child.stdin is not None:
            child.stdin.close()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
