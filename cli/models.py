"""`headstart models`: the model that is served, and what its cache does, read from the metrics of a running server."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from cli.figures import Figures, figures
from cli.metrics_port import metrics_url
from cli.scrape import scrape
from cli.tables import print_json, print_table
from core.errors import InvalidArgument
from core.settings import Settings, load_settings

_MIB = 1 << 20
_SHORT = 12  # characters of each half of a fingerprint

app = typer.Typer(help="Show the served model and its cache.", no_args_is_help=True)


@app.callback()
def _keep_group() -> None:
    """Typer would make a group of one command that command itself."""


@app.command()
def show(
    url: Annotated[
        str | None,
        typer.Option(
            "--metrics-url",
            help="Where a server tells its metrics. [default: HEADSTART_METRICS_HOST and _PORT]",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the served model: hit rates, times to first token, memory, and how busy it is."""
    made = figures(scrape(_default_url(load_settings()) if url is None else url))
    if as_json:
        print_json(made.as_json())
    else:
        print_table(f"Model {made.name}", ("figure", "of", "value"), _rows(made), numbers=1)


def _default_url(settings: Settings) -> str:
    if settings.metrics_port == 0:
        raise InvalidArgument(
            "HEADSTART_METRICS_PORT is 0, so that each server chooses its own: name it with --metrics-url.",
            field="metrics_url",
        )
    return metrics_url(settings.metrics_host, settings.metrics_port)


def _rows(made: Figures) -> Iterator[Sequence[str]]:
    yield ("fingerprint", "", ":".join(half[:_SHORT] for half in made.fingerprint.split(":")))
    yield ("number format", "", made.dtype)
    yield ("device", "", made.device)
    yield ()
    for source, part in made.hit_rates.items():
        yield ("token hit rate", source, _percent(part))
    for source, tokens in made.prompt_tokens.items():
        yield ("prompt tokens", source, f"{tokens:,}")
    yield ("prefill tokens skipped", "", f"{made.prefill_tokens_skipped:,}")
    yield ()
    for first in made.first_tokens:
        of = f"{first.kind}, {first.tier}"
        yield ("time to first token, median", of, _milliseconds(first.median_seconds))
        yield ("time to first token, 95 % within", of, _milliseconds(first.p95_seconds))
    yield ()
    yield from _memory_rows(made)
    yield ()
    for state, count in made.requests.items():
        yield ("requests", state, f"{count:,}")
    yield ("builds", "", f"{made.builds:,}")
    yield ("step time, mean", "", _milliseconds(made.step_seconds))
    yield ("rows of answers a step, mean", "", _one_digit(made.step_decode_rows))
    yield ("prefill tokens a step, mean", "", _one_digit(made.step_prefill_tokens))


def _memory_rows(made: Figures) -> Iterator[Sequence[str]]:
    for memory in made.kv_bytes:
        yield ("KV", f"{memory.tier}, {memory.kind}", _mib(memory.size))
    used = f"{_mib(made.pin_budget.used)} of {_mib(made.pin_budget.limit)}"
    yield ("pin budget used", "", f"{used} ({_percent(made.pin_budget.part)})")
    for tier, tokens in made.evicted_tokens.items():
        yield ("evicted tokens", tier, f"{tokens:,}")
    yield ("demoted tokens", "device", f"{made.demoted_tokens:,}")
    for tier, tokens in made.promoted_tokens.items():
        yield ("promoted tokens", tier, f"{tokens:,}")
    for choice, count in made.choices.items():
        yield ("KV below the device was wanted", choice, f"{count:,}")
    yield ("lost tokens", "", f"{made.lost_tokens:,}")
    for reason, count in made.rejected_files.items():
        yield ("rejected KV files", reason, f"{count:,}")
    for reason, count in made.rebuilds.items():
        yield ("rebuilds", reason, f"{count:,}")


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f} ms"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"


def _one_digit(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"
