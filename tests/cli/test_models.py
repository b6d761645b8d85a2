"""`headstart models show`, of metrics that are known; tests/e2e/test_metrics.py asks a real server."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from cli.metrics_port import served_metrics
from cli.scrape import Distribution
from core.metrics import Metrics
from core.settings import load_settings
from tests.cli.running import done, refused

MIB = 1 << 20


@pytest.fixture
def metrics() -> Metrics:
    """Of a server that has answered 100 requests."""
    metrics = Metrics()
    metrics.model_info.labels("tiny", "0123456789abcdef:fedcba9876543210", "float32", "cpu").set(1)
    for source, tokens in (("computed", 1_000), ("explicit", 8_500), ("implicit", 500)):
        metrics.prompt_tokens.labels(source).inc(tokens)
    metrics.prefill_tokens_skipped.inc(8_999)
    for _ in range(100):
        metrics.time_to_first_token.labels("explicit", "device").observe(0.03)
    for kind, size in (("pinned", 3), ("ended", 1), ("automatic", 2), ("free", 10)):
        metrics.kv_bytes.labels("device", kind).set(size * MIB)
    metrics.kv_pin_budget_bytes.set(8 * MIB)
    metrics.kv_pin_budget_used_bytes.set(4 * MIB)
    metrics.kv_evicted_tokens.labels("device").inc(12_345)
    metrics.rebuilds.labels("asked").inc(2)
    for state, count in (("running", 3), ("waiting", 4)):
        metrics.requests.labels(state).set(count)
    metrics.builds.set(5)
    for rows in (1, 2):
        metrics.step_seconds.observe(0.01 * rows)
        metrics.step_decode_rows.observe(rows)
        metrics.step_prefill_tokens.observe(0)
    return metrics


@pytest.fixture
def url(metrics: Metrics) -> Iterator[str]:
    with served_metrics(load_settings(metrics_port=0), metrics) as url:
        yield url


def test_shows_a_table(url: str) -> None:
    text = done("models", "show", "--metrics-url", url)
    assert text.startswith("Model tiny\n")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    shown = {(row[0], row[1]): row[2] for row in rows}
    assert len(shown) == len(rows) == 26
    assert shown["fingerprint", ""] == "0123456789ab:fedcba987654"
    assert shown["token hit rate", "explicit"] == "85.0 %"
    assert shown["token hit rate", "implicit"] == "5.0 %"
    assert shown["prompt tokens", "computed"] == "1,000"
    assert shown["prefill tokens skipped", ""] == "8,999"
    assert shown["time to first token, median", "explicit, device"] == "30.0 ms"
    assert shown["time to first token, 95 % within", "explicit, device"] == "39.0 ms"
    assert shown["KV", "device, pinned"] == "3.0 MiB"
    assert shown["pin budget used", ""] == "4.0 MiB of 8.0 MiB (50.0 %)"
    assert shown["evicted tokens", "device"] == "12,345"
    assert shown["rebuilds", "asked"] == "2"
    assert shown["requests", "waiting"] == "4"
    assert shown["builds", ""] == "5"
    assert shown["step time, mean", ""] == "15.0 ms"
    assert shown["rows of answers a step, mean", ""] == "1.5"
    assert shown["prefill tokens a step, mean", ""] == "0.0"


def test_prints_json(url: str) -> None:
    found = json.loads(done("models", "show", "--json", "--metrics-url", url))
    assert found["model"] == {
        "name": "tiny",
        "fingerprint": "0123456789abcdef:fedcba9876543210",
        "dtype": "float32",
        "device": "cpu",
    }
    assert found["tokenHitRate"] == {"explicit": 0.85, "implicit": 0.05}
    (first,) = found["timeToFirstToken"]
    assert (first["kind"], first["tier"], first["count"]) == ("explicit", "device", 100)
    assert 0.02 <= first["medianSeconds"] < first["p95Seconds"] <= 0.04
    assert {"tier": "device", "kind": "automatic", "bytes": 2 * MIB} in found["kvBytes"]
    assert found["pinBudget"] == {"usedBytes": 4 * MIB, "limitBytes": 8 * MIB}
    assert found["steps"] == {"meanSeconds": 0.015, "meanDecodeRows": 1.5, "meanPrefillTokens": 0.0}


def test_asks_where_the_settings_say(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_METRICS_PORT", url.split(":")[2].removesuffix("/metrics"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # it is not asked through a proxy
    assert "Model tiny" in done("models", "show")
    monkeypatch.setenv("HEADSTART_METRICS_PORT", "0")
    assert "--metrics-url" in refused("models", "show")


def test_a_server_that_has_done_nothing_so_far() -> None:
    metrics = Metrics()
    metrics.model_info.labels("tiny", "aa:bb", "float32", "cpu").set(1)
    with served_metrics(load_settings(metrics_port=0), metrics) as url:
        found = json.loads(done("models", "show", "--json", "--metrics-url", url))
        assert found["tokenHitRate"] == {"explicit": None, "implicit": None}
        assert found["steps"]["meanSeconds"] is None
        assert "Model tiny" in done("models", "show", "--metrics-url", url)


def test_a_server_that_is_starting() -> None:
    with served_metrics(load_settings(metrics_port=0), Metrics()) as url:
        assert "starting" in refused("models", "show", "--metrics-url", url)


def test_nothing_that_answers() -> None:
    message = refused("models", "show", "--metrics-url", "http://127.0.0.1:1/metrics")
    assert "http://127.0.0.1:1/metrics" in message
    assert "Connection refused" in message
    assert "headstart serve" in message


@pytest.mark.parametrize("url", ["localhost:9464", "file:///etc/passwd", ""])
def test_what_is_no_address(url: str) -> None:
    message = refused("models", "show", "--metrics-url", url)
    assert "write it as http://" in message


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, "", "Not Found"),
        (200, "<html>{", "no metrics"),
        (200, "other_total 1\n", "no Headstart"),
        (200, "\udcff", "no metrics"),
    ],
)
def test_something_else_that_answers(status: int, body: str, told: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode(errors="surrogateescape"))

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        assert told in refused("models", "show", "--metrics-url", f"http://127.0.0.1:{server.server_port}/")
        thread.join()


@pytest.mark.parametrize(
    ("part", "expected"), [(0.25, 1.0), (0.5, 2.0), (0.625, 3.0), (0.75, 4.0), (0.95, 4.0)]
)
def test_quantiles_are_estimated_within_a_bucket(part: float, expected: float) -> None:
    """Two values up to 2, one up to 4, one above that: as histogram_quantile does."""
    buckets = ((2.0, 2.0), (4.0, 3.0), (float("inf"), 4.0))
    assert Distribution(4, 10.0, buckets).quantile(part) == expected


def test_nothing_observed_has_no_quantile() -> None:
    empty = Distribution(0, 0.0, ((1.0, 0.0), (float("inf"), 0.0)))
    assert empty.quantile(0.5) is None
    assert empty.mean is None
