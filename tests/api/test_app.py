import logging
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.api.harness import Server

ROOT = Path(__file__).parents[2]


def rename(server: Server, old: str, new: str) -> None:
    with server.state.database.write() as session:
        session.connection().exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")


class TestUnknownRoutes:
    @pytest.mark.parametrize(
        "path", ["/", "/v1", "/v2/models", "/v1/interactions", "/v1/models/", "/v1//models"]
    )
    def test_answer_404_in_the_envelope(self, http: httpx.Client, path: str) -> None:
        response = http.get(path)
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/json"
        assert list(response.json()) == ["error"]
        assert response.json()["error"]["status"] == "NOT_FOUND"

    def test_need_no_key(self, server: Server) -> None:
        assert httpx.get(f"{server.url}/nowhere").status_code == 404

    def test_a_trailing_slash_redirects_nowhere(self, http: httpx.Client) -> None:
        assert http.get("/v1/cachedContents/", follow_redirects=False).status_code == 404

    def test_neither_docs_nor_schema_are_served(self, http: httpx.Client) -> None:
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert http.get(path).status_code == 404


class TestWrongMethods:
    def test_answer_405_and_name_all_that_work(self, http: httpx.Client) -> None:
        response = http.put("/v1beta/cachedContents")
        assert response.status_code == 405
        assert response.headers["allow"] == "GET, POST"
        assert response.json()["error"]["code"] == 405
        assert http.post("/v1/cachedContents/x").headers["allow"] == "GET, PATCH, DELETE"


def test_every_answer_has_an_id_of_its_own(http: httpx.Client) -> None:
    ids = {http.get(path).headers["x-request-id"] for path in ("/v1/models", "/nowhere", "/v1/models")}
    assert len(ids) == 3


class TestLog:
    def test_has_one_line_a_request_and_never_the_query(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO"):
            response = httpx.get(f"{server.url}/v1/models?key={server.key}")
        lines = [record for record in caplog.records if record.name == "api.edge"]
        assert len(lines) == 1
        assert vars(lines[0])["request_id"] == response.headers["x-request-id"]
        assert vars(lines[0])["path"] == "/v1/models"
        assert vars(lines[0])["status"] == 200
        ours = [record for record in caplog.records if record.name not in {"httpx", "uvicorn.access"}]
        assert server.key not in " ".join(str(vars(record)) for record in ours)

    def test_is_the_only_one(self, server: Server) -> None:
        """Uvicorn's own would print the query. (In tests pytest hangs its handlers even on a silent logger.)"""
        access = logging.getLogger("uvicorn.access")
        assert not access.propagate
        assert [handler for handler in access.handlers if "LogCapture" not in type(handler).__name__] == []

    def test_has_what_nobody_foresaw_once_and_the_caller_does_not(
        self, server: Server, http: httpx.Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        rename(server, "api_keys", "lost")
        try:
            response = http.get("/v1/models")
        finally:
            rename(server, "lost", "api_keys")
        assert response.status_code == 500
        assert response.json()["error"]["status"] == "INTERNAL"
        assert "api_keys" not in response.text
        assert len([record for record in caplog.records if record.exc_info]) == 1


def test_importing_the_application_imports_no_model_library() -> None:
    code = (
        "import sys, api.app; print(sorted({'torch', 'transformers', 'workers', 'cli'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_middleware_is_pure_asgi() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "api").rglob("*.py")}
    assert sources
    assert [
        path for path, text in sources.items() if re.search(r"BaseHTTPMiddleware|@app\.middleware", text)
    ] == []
