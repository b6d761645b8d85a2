"""`headstart demo`: the command alone; run has the course of it. Its client is an extra: imported when it is called."""

import json
import signal
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from cli.demo.run import run
from cli.demo.story import Story


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print the closing JSON line alone.")] = False,
) -> None:
    """See it work: cold against cached, with answers and a bill that adds up."""
    # Told to stop, it leaves as it does after Ctrl-C: the server's process and the temporary folder go with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    result = run(Story(Console(stderr=True, quiet=as_json)))
    print(json.dumps(asdict(result)), flush=True)
    if not result.ledger_matches:
        raise typer.Exit(code=1)
