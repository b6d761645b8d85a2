"""`headstart billing quote`, of prices in a database, and of a server that counts; tests/e2e/test_quote.py asks a real one."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from billing.meters import Meter
from billing.prices import store
from models.session import Database
from tests.billing.rows import T0, add_project, book, joined
from tests.cli.running import done, headstart, refused

QUOTE = ("billing", "quote")
PLAN = (*QUOTE, "--tokens", "1000", "--hits", "10", "--ttl", "3600", "--model", "tiny")
USED = ("--suffix-tokens", "7", "--output-tokens", "3")


@pytest.fixture
def priced(database: Database) -> str:
    """A project for which reading is free."""
    with database.write() as session:
        project_id = add_project(session, "busy")
        store(session, joined(book(), book({Meter.CACHE_READ_TOKENS: 0}, project_id=project_id)), T0)
        return project_id


class TestOfPrices:
    def test_shows_what_it_costs_saves_and_takes(self, priced: str) -> None:
        shown = done(*PLAN, *USED)
        assert shown.startswith("tiny: 1,000 tokens kept for 3,600 seconds, hit 10 times\n")
        rows = [
            [cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line
        ]
        assert rows == [
            ["cache_write_tokens", "1,000", "0.000100000", "0.000000000"],
            ["cache_storage_token_seconds", "3,600,000", "0.001000000", "0.000000000"],
            ["cache_read_tokens", "10,000", "0.000100000", "0.001000000"],
            ["input_tokens", "70", "0.000007000", "0.000007000"],
            ["output_tokens", "30", "0.000012000", "0.000012000"],
            ["all", "", "0.001219000", "0.001019000"],
        ]
        assert shown.splitlines()[-3:] == [
            "The cache costs more than it saves: 0.000200000 USD.",
            "It pays from 13 hits on.",
            "Keeping it longer pays with 11.1111 hits an hour.",
        ]
        assert "The cache saves 0.000070000 USD." in done(*PLAN, "--hits", "13")

    def test_prints_the_json_that_the_api_answers(self, priced: str) -> None:
        found = json.loads(done(*PLAN, *USED, "--json"))
        assert (found["project"], found["model"], found["seconds"]) == (None, "tiny", 3600)
        assert (found["amountNanoUsd"], found["breakEvenHits"], found["hits"]) == (1_219_000, 13, 10)

    def test_is_at_the_prices_of_a_project(self, priced: str) -> None:
        for word in ("busy", priced):
            found = json.loads(done(*PLAN, "--project", word, "--json"))
            assert found["project"] == priced
            assert found["meters"][2]["amountNanoUsd"] == 0
        assert "There is no project absent" in refused(*PLAN, "--project", "absent")

    def test_is_of_the_served_model_and_an_hour_when_nothing_is_said(
        self, priced: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HEADSTART_MODEL_NAME", "tiny")
        found = json.loads(done(*QUOTE, "--tokens", "5", "--hits", "0", "--json"))
        assert (found["model"], found["seconds"]) == ("tiny", 3600)
        monkeypatch.setenv("HEADSTART_DEFAULT_TTL_SECONDS", "60")
        assert json.loads(done(*QUOTE, "--tokens", "5", "--hits", "0", "--json"))["seconds"] == 60

    def test_says_when_it_never_pays(self, database: Database, priced: str) -> None:
        with database.write() as session:
            vain = book({Meter.CACHE_READ_TOKENS: 100_000_000}, model="vain")
            rest = book(
                {meter: price for meter, price in ODD.items() if meter is not Meter.CACHE_READ_TOKENS},
                model="vain",
            )
            own = book({Meter.CACHE_READ_TOKENS: 0}, project_id=priced)
            store(session, joined(book(), own, vain, rest), T0)
        shown = done(*PLAN, "--model", "vain")
        assert shown.endswith("It never pays: reading from it costs what computing does.\n")
        assert json.loads(done(*PLAN, "--model", "vain", "--json"))["breakEvenHits"] is None

    def test_refuses_what_has_no_price_or_lasts_too_long(self, priced: str) -> None:
        assert 'Model "other" has no price' in refused(*PLAN, "--model", "other")
        assert "HEADSTART_MAX_TTL_SECONDS" in refused(*PLAN, "--ttl", "2592001")

    @pytest.mark.parametrize(
        "args",
        [
            ("--hits", "1"),
            ("--tokens", "5"),
            ("--tokens", "0", "--hits", "1"),
            ("--tokens", "5", "--hits", "-1"),
            ("--tokens", "5", "--file", "x", "--hits", "1"),
            ("--tokens", "5", "--hits", "1", "--ttl", "0"),
        ],
    )
    def test_wrong_usage(self, priced: str, args: tuple[str, ...]) -> None:
        assert headstart(*QUOTE, *args).status == 2


ODD = dict.fromkeys(Meter, 100_000_000)


class Double(BaseHTTPRequestHandler):
    """A server that serves "tiny", and answers a quote with what it was asked."""

    def do_GET(self) -> None:
        self._answer(200, {"models": [{"name": "models/tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["x-goog-api-key"] != "right":
            self._answer(401, {"error": {"message": "Missing or invalid API key."}})
        else:
            self._answer(200, {"path": self.path, "body": body})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Double) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "handbook.txt"
    path.write_text("The glaze fires at 1,240 °C.", encoding="utf-8")
    return str(path)


class TestOfAFile:
    def test_asks_the_server_as_a_create_would(self, empty_folder: Path, url: str, text: str) -> None:
        asked = (
            "--file",
            text,
            "--hits",
            "3",
            "--ttl",
            "60",
            *USED,
            "--url",
            url,
            "--key",
            "right",
            "--json",
        )
        found = json.loads(done(*QUOTE, *asked))
        assert found == {
            "path": "/headstart/v1/billing/quote",
            "body": {
                "model": "models/tiny",
                "systemInstruction": {"parts": [{"text": "The glaze fires at 1,240 °C."}]},
                "ttl": "60s",
                "expectedHits": 3,
                "suffixTokens": 7,
                "outputTokens": 3,
            },
        }
        found = json.loads(done(*QUOTE, *asked, "--model", "other", "--project", "a b"))
        assert (found["path"], found["body"]["model"]) == ("/headstart/v1/billing/quote?project=a+b", "other")

    def test_takes_key_and_address_from_the_environment(
        self, empty_folder: Path, url: str, text: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HEADSTART_KEY", "right")
        monkeypatch.setenv("HEADSTART_PORT", url.rpartition(":")[2])
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # it is not asked through a proxy
        assert json.loads(done(*QUOTE, "--file", text, "--hits", "3", "--json"))["body"]["ttl"] == "3600s"
        monkeypatch.setenv("HEADSTART_PORT", "0")
        assert "--url" in refused(*QUOTE, "--file", text, "--hits", "3")

    def test_tells_what_the_server_refuses(self, empty_folder: Path, url: str, text: str) -> None:
        asked = (*QUOTE, "--file", text, "--hits", "3")
        assert refused(*asked, "--url", url, "--key", "wrong") == "Missing or invalid API key."
        assert "HEADSTART_KEY" in refused(*asked, "--url", url)
        assert "headstart serve" in refused(*asked, "--url", "http://127.0.0.1:1", "--key", "right")
        assert "write it as http://" in refused(*asked, "--url", "127.0.0.1", "--key", "right")

    def test_refuses_what_is_no_text(self, empty_folder: Path, url: str, tmp_path: Path) -> None:
        path = tmp_path / "picture"
        path.write_bytes(b"\xff\xfe\x00")
        asked = ("--hits", "3", "--url", url, "--key", "right")
        assert "no UTF-8 text" in refused(*QUOTE, "--file", str(path), *asked)
        assert "No such file" in refused(*QUOTE, "--file", str(tmp_path / "absent"), *asked)

    @pytest.mark.parametrize(
        ("status", "body", "told"),
        [(404, "<html>", "404"), (200, "<html>", "no Headstart"), (500, "[]", "500")],
    )
    def test_something_else_that_answers(
        self, empty_folder: Path, text: str, status: int, body: str, told: str
    ) -> None:
        class Other(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Other) as server:
            thread = Thread(target=server.handle_request)
            thread.start()
            address = f"http://127.0.0.1:{server.server_port}"
            assert told in refused(*QUOTE, "--file", text, "--hits", "1", "--url", address, "--key", "right")
            thread.join()
