"""`headstart serve`: the embedded server behind HTTP, until it is told to stop."""

import asyncio
import gc
import json
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from rich.console import Console

from api.app import create_app
from api.server import server_config
from cli.addresses import url_host
from cli.embedded import Embedded, embedded
from cli.metrics_port import served_metrics
from cli.progress import conversion_progress
from core import logs
from core.errors import SettingsInvalid
from core.metrics import Metrics
from core.settings import Settings, load_settings

# Told to stop, requests have this long to finish by themselves; then the engine ends them. uvicorn cuts off what is left.
_FINISH_SECONDS = 5.0


def serve(
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the database (HEADSTART_DATA_DIR).")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (HEADSTART_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (HEADSTART_PORT).")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the metrics; 0 takes a free one (HEADSTART_METRICS_PORT).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name, folder or hub id (HEADSTART_MODEL).")] = None,
    *,
    rebuild_caches: Annotated[bool, typer.Option(help="Rebuild live caches for new weights.")] = False,
    retire_caches: Annotated[bool, typer.Option(help="End live caches of another model.")] = False,
    json_ready: Annotated[
        bool, typer.Option(help="Say that it is ready as one JSON line on stdout.")
    ] = False,
) -> None:
    """Start the embedded server: API, engine and database in one process."""
    given = {"data_dir": data_dir, "host": host, "port": port, "metrics_port": metrics_port, "model": model}
    flags = {"rebuild_caches": rebuild_caches, "retire_caches": retire_caches}
    settings = load_settings(
        **{name: value for name, value in given.items() if value is not None},
        **{name: value for name, value in flags.items() if value},
    )
    logs.configure(settings.log_level)
    listener, metrics = _listen(settings), Metrics()
    with (
        served_metrics(settings, metrics) as metrics_address,
        conversion_progress() as progress,
        embedded(settings, progress, metrics) as running,
    ):
        address = f"http://{url_host(settings.host)}:{listener.getsockname()[1]}"
        _run(
            settings,
            running,
            listener,
            lambda: _announce(address, metrics_address, running, json_ready=json_ready),
        )


class _Server(uvicorn.Server):
    """uvicorn that says when it answers, and ends what still runs some seconds after it was told to stop."""

    def __init__(
        self, config: uvicorn.Config, announce: Callable[[], None], end_requests: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._announce = announce
        self._end_requests = end_requests

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.get_running_loop().call_later(_FINISH_SECONDS, self._end_requests)
        await super().shutdown(sockets)
        ending.cancel()


def _run(
    settings: Settings, running: Embedded, listener: socket.socket, announce: Callable[[], None]
) -> None:
    state = running.api_state(settings, lambda: running.has_engine() and not server.should_exit)
    config = server_config(create_app(state), settings.host, settings.port)
    server = _Server(config, announce, running.transport.close)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # uvicorn puts back the handlers it found and raises the signal once more: it must not end the process then, with
        # usage unsettled and the data folder locked. A terminal that is closed stops the server too, unless nohup keeps it.
        if each is not signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, server.handle_exit)
    # What is loaded by now stays until the end: the collector need not look at it, least of all when the process exits.
    gc.freeze()
    server.run(sockets=[listener])


def _listen(settings: Settings) -> socket.socket:
    """Take the port first: a server that cannot listen should say so before it loads a model."""
    try:
        return socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=2048,
        )
    except OSError as error:
        raise SettingsInvalid(
            f"Cannot listen on {settings.host}, port {settings.port}: {error.strerror}. Choose another with --port "
            "(0 takes a free one) or HEADSTART_PORT.",
            field="port",
        ) from error


def _announce(address: str, metrics_address: str, running: Embedded, *, json_ready: bool) -> None:
    keys = running.first_keys
    if json_ready:
        ready = {
            "address": address,
            "metrics_address": metrics_address,
            "project_key": keys.project_key if keys is not None else None,
            "operator_key": keys.operator_key if keys is not None else None,
        }
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        return
    # Nothing is marked up: an IPv6 address looks like markup, and would be swallowed.
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nHeadstart serves {running.served_model.name} at {address}", style="bold")
    console.print(f"Metrics: {metrics_address}\n")
    if keys is not None:
        console.print("Two keys were made. They are shown this once; `headstart keys create` makes more.")
        console.print(f'  project "default":  {keys.project_key}')
        console.print(f"  operator:           {keys.operator_key}\n")
    console.print(_snippet(address, running.served_model.name, keys.project_key if keys else "YOUR_KEY"))


def _snippet(address: str, model: str, key: str) -> str:
    return f"""Paste this into Python (pip install google-genai):

from google import genai
client = genai.Client(api_key="{key}", http_options={{"base_url": "{address}"}})
cache = client.caches.create(model="{model}", config={{
    "system_instruction": "You answer in one sentence. " * 20, "ttl": "600s"}})
answer = client.models.generate_content(model="{model}",
    contents="What is the capital of France?", config={{"cached_content": cache.name}})
print(answer.text, answer.usage_metadata.cached_content_token_count)
"""
