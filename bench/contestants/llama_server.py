"""llama-server of llama.cpp, over HTTP: one slot that keeps the prompt it saw last, reading the same GGUF file as ours."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from socket import create_server
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from bench.contestant import Asked, Description, Kept, Setting
from bench.machine import core_count
from bench.workload import Document, Prompt
from workers.engine.loading.built_in import find_gguf

START_SECONDS = 60
STOP_SECONDS = 10
ANSWER_SECONDS = 600


class LlamaServer:
    def __init__(self) -> None:
        self._open = ExitStack()
        self._settings: dict[str, Setting] = {
            "--threads": core_count(),
            "--ctx-size": 8192,
            "--parallel": 1,
            "--batch-size": 2048,
        }
        self._address = self._open.enter_context(_running(self._settings))

    def describe(self) -> Description:
        with urlopen(f"{self._address}/props", timeout=START_SECONDS) as answer:  # noqa: S310 - our own child
            build = json.load(answer).get("build_info", "unknown")
        return Description({"llama-server": build}, self._settings)

    def keep(self, document: Document) -> Kept:
        """It keeps what it has computed for a request: the first one about a document."""
        return Kept(self._ask(document.first_prompt, 1).first_text_s)

    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        return self._ask(prompt.text, output_tokens)

    def close(self) -> None:
        self._open.close()

    def _ask(self, text: str, output_tokens: int) -> Asked:
        body = {
            "prompt": text,
            "n_predict": output_tokens,
            "cache_prompt": True,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        started = time.perf_counter()
        times = [time.perf_counter() for event in self._stream(body) if event.get("content")]
        return Asked.from_times(started, times)

    def _stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        request = Request(  # noqa: S310 - our own child
            f"{self._address}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))


@contextmanager
def _running(settings: dict[str, Setting]) -> Iterator[str]:
    """Start the server on a free port, wait until it is healthy, end it on leaving. Its log is the contestant's."""
    with create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = shutil.which("llama-server")
    assert program is not None, "the roster asks first"
    options = [str(each) for pair in settings.items() for each in pair]
    child = subprocess.Popen(  # noqa: S603
        [program, "--model", str(find_gguf()), "--host", "127.0.0.1", "--port", str(port), *options]
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(address, child)
        yield address
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_until_healthy(address: str, child: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        try:
            with urlopen(f"{address}/health", timeout=1):  # noqa: S310
                return
        except (URLError, TimeoutError):  # not listening yet, or still loading
            time.sleep(0.2)
    raise RuntimeError("llama-server did not become healthy")
