"""A Hugging Face hub with one model, as far as its client asks: revision, file list, files. Counts what was fetched."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    repo_id: ClassVar[str]
    folder: ClassVar[Path]
    fetched: ClassVar[list[str]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        file = self.folder / path.rpartition("/")[2]
        if path.startswith(f"/api/models/{self.repo_id}/tree/"):
            self._answer(json.dumps([_entry(each) for each in sorted(self.folder.iterdir())]).encode())
        elif path.startswith(f"/api/models/{self.repo_id}"):
            self._answer(json.dumps({"id": self.repo_id, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith(f"/{self.repo_id}/resolve/") and file.is_file():
            if self.command == "GET":
                self.fetched.append(file.name)
            self._answer(file.read_bytes(), etag=_entry(file)["oid"])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, body: bytes, etag: object = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", COMMIT)
        if etag is not None:
            self.send_header("ETag", f'"{etag}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _entry(file: Path) -> dict[str, object]:
    content = file.read_bytes()
    return {
        "type": "file",
        "path": file.name,
        "size": len(content),
        "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
    }


@contextmanager
def fake_hub(repo_id: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the folder; give the address and the names of the files fetched so far."""
    fetched: list[str] = []
    handler = type("Handler", (FakeHub,), {"repo_id": repo_id, "folder": folder, "fetched": fetched})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
