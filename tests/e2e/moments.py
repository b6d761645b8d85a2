"""The moments of a request inside a server, watched from outside, and the end of the process at any one of them.

Installed in the server's process before it starts, around doors that it has anyway: a commit, the transport, a step of
the model, the messages of ASGI. Each moment is written to a journal, which outlives the process. A moment is named
by what happens next and by how often it has come: "commit 2" is just before the second commit, "committed 2" just after.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-end-at"
NEVER = "never"
_DOORS = pytest.MonkeyPatch()  # never undone: the process ends


@dataclass
class Journal:
    """Nothing is written until watching begins."""

    path: Path
    _end_at: str = NEVER
    _counts: Counter[str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, end_at: str) -> None:
        """Start anew; the process ends at the moment of this name."""
        with self._lock:
            self.path.write_text("")
            self._end_at = end_at
            self._counts = Counter()

    def mark(self, what: str) -> None:
        with self._lock:  # held while the process ends, so that no other thread gets any further
            if self._counts is None:
                return
            self._counts[what] += 1
            moment = f"{what} {self._counts[what]}"
            with self.path.open("a") as file:
                file.write(moment + "\n")
            if moment == self._end_at:
                os.kill(os.getpid(), signal.SIGKILL)


def watch(path: Path, end_at: str | None = None) -> None:
    """Watch this process: from the first request on that says by a header where to end, or from now on."""
    from sqlalchemy import Engine, event
    from sqlalchemy.orm import Session

    from api.app import create_app
    from core.transport.local import LocalTransport
    from workers.engine.model import Model

    journal = Journal(path)
    event.listen(Engine, "commit", lambda _: journal.mark("commit"))
    event.listen(Session, "after_commit", lambda _: journal.mark("committed"))
    _before(journal, LocalTransport, "send", lambda message: f"send {type(message).__name__}")
    _before(journal, LocalTransport, "publish", lambda _, event: f"publish {type(event).__name__}")
    _before(journal, Model, "forward", lambda _: "forward")
    _DOORS.setattr("cli.serve.create_app", lambda state: _watched(journal, create_app(state)))
    if end_at is not None:
        journal.begin(end_at)


def never_remove_kv_files() -> None:
    """Removals do not come to pass in this process: what it was to remove is there when it is killed."""
    _DOORS.setattr("workers.engine.tiers.disk_store.DiskStore.delete", lambda *_: None)


def _before(journal: Journal, owner: type, method: str, name: Callable[..., str]) -> None:
    original = getattr(owner, method)

    @wraps(original)
    def marked(self: object, *args: Any) -> Any:
        journal.mark(name(*args))
        return original(self, *args)

    _DOORS.setattr(owner, method, marked)


def _watched(journal: Journal, app: ASGIApp) -> ASGIApp:
    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def marked_send(message: Message) -> None:
            journal.mark(message["type"])
            await send(message)

        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if HEADER in headers:
            journal.begin(headers[HEADER])
        journal.mark("asked")
        await app(scope, receive, marked_send)
        journal.mark("answered")

    return watched
