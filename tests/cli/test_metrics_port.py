"""Metrics on a port of their own: there from the first moment, gone with the server, and a port that is taken is told."""

import socket

import httpx
import pytest

from cli.metrics_port import metrics_url, served_metrics
from core.errors import SettingsInvalid
from core.metrics import Metrics
from core.settings import load_settings


def read(url: str) -> str:
    answer = httpx.get(url, trust_env=False)
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_serves_what_was_counted_and_nothing_else(host: str) -> None:
    metrics = Metrics()
    metrics.rebuilds.labels("asked").inc(3)
    with served_metrics(load_settings(metrics_host=host, metrics_port=0), metrics) as url:
        assert url.startswith(f"http://{host}:")
        text = read(url)
        assert 'headstart_rebuilds_total{reason="asked"} 3.0' in text
        assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == {
            name + ("_total" if family.type == "counter" else "")
            for family in metrics.registry.collect()
            for name in [family.name]
        }
    with pytest.raises(httpx.ConnectError):
        read(url)


def test_a_port_that_is_taken_is_told_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = load_settings(metrics_port=taken.getsockname()[1])
        refusal = pytest.raises(SettingsInvalid, match="HEADSTART_METRICS_PORT")
        with refusal as caught, served_metrics(settings, Metrics()):
            pass
    assert f"port {settings.metrics_port}: Address already in use" in caught.value.message
    assert "--metrics-port" in caught.value.message
    assert caught.value.field == "metrics_port"


def test_a_host_that_is_not_there_is_told_too() -> None:
    settings = load_settings(metrics_host="192.0.2.1", metrics_port=0)
    refusal = pytest.raises(SettingsInvalid, match=r"Cannot serve metrics on 192\.0\.2\.1")
    with refusal, served_metrics(settings, Metrics()):
        pass


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert metrics_url("::1", 9464) == "http://[::1]:9464/metrics"
    assert metrics_url("0.0.0.0", 9464) == "http://127.0.0.1:9464/metrics"
