"""Metrics over HTTP, on a port of their own: no key opens it, so it is not the API's and stays on the machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from cli.addresses import url_host
from core.errors import SettingsInvalid
from core.metrics import Metrics
from core.settings import Settings

PATH = "/metrics"


def metrics_url(host: str, port: int) -> str:
    return f"http://{url_host(host)}:{port}{PATH}"


@contextmanager
def served_metrics(settings: Settings, metrics: Metrics) -> Iterator[str]:
    """Answer with the metrics in Prometheus' text form until leaving; gives the URL.

    Raises SettingsInvalid where it cannot listen there.
    """
    host, port = settings.metrics_host, settings.metrics_port
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise SettingsInvalid(
            f"Cannot serve metrics on {host}, port {port}: {error.strerror}. Choose another with --metrics-port "
            "(0 takes a free one) or HEADSTART_METRICS_PORT.",
            field="metrics_port",
        ) from error
    try:
        yield metrics_url(host, server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
