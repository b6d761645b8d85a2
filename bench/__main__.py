"""`python -m bench`: runs a benchmark, prints what was seen, and one JSON object as the last line."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import fanout, ttft
from bench.contestant import Description
from bench.document import write_page
from bench.figures import find_voids
from bench.machine import load, this_machine, wait_until_quiet
from bench.plan import FULL, QUICK, Plan
from bench.remote import ContestantFailed, Remote, remote
from bench.report import Circumstances, Outcome, as_json, claims, described, overview
from bench.roster import OURS, OURS_HTTP, PEERS, ROSTER, installed_peers
from bench.workload import Workload
from core.settings import load_settings
from workers.engine.loading.progress import silent
from workers.engine.loading.serve import load_served_model

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
_QUICK = "Short documents and few repetitions: shows that it works, and compares with nothing."
_PEERS = f"Which of {', '.join(PEERS)}, separated by commas. Default: all that are installed."

Json = Annotated[bool, typer.Option("--json", help="Print the JSON line alone.")]
Quick = Annotated[bool, typer.Option("--quick", help=_QUICK)]
Peers = Annotated[str | None, typer.Option("--peers", help=_PEERS)]


@app.command("ttft")
def ttft_command(as_line: Json = False, quick: Quick = False, peers: Peers = None) -> None:
    """Time to first text, cold and kept, in process and over HTTP."""
    run("ttft", as_line, QUICK if quick else FULL, peers)


@app.command("fanout")
def fanout_command(as_line: Json = False, quick: Quick = False, peers: Peers = None) -> None:
    """Many questions at once against one prefix: throughput and memory."""
    run("fanout", as_line, QUICK if quick else FULL, peers)


@app.command("all")
def all_command(as_line: Json = False, quick: Quick = False, peers: Peers = None) -> None:
    """Both."""
    run("all", as_line, QUICK if quick else FULL, peers)


@app.command("document")
def document_command() -> None:
    """Write the figures recorded in docs/performance.json into docs/performance.md."""
    write_page()


def run(name: str, as_line: bool, plan: Plan, peers: str | None) -> None:
    load_before = load() if plan.is_quick else quiet_load()
    chosen = [OURS, OURS_HTTP, *choose_peers(peers)]
    _, served_model = load_served_model(load_settings(), silent)
    workload = Workload(served_model.format)
    descriptions: dict[str, Description] = {}
    outcomes = []
    try:
        for benchmark in ("ttft", "fanout") if name == "all" else (name,):
            measure = measure_ttft if benchmark == "ttft" else measure_fanout
            outcomes.append(measure(chosen, workload, plan, descriptions))
    except ContestantFailed as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    changed = tuple(descriptions[OURS].changed)
    around = Circumstances(this_machine(), load_before, plan.is_quick, changed)
    if not as_line:
        show(outcomes, descriptions, around)
    typer.echo(json.dumps(as_json(name, outcomes, descriptions, around)))
    if any(outcome.voids for outcome in outcomes):
        raise typer.Exit(1)


def measure_ttft(
    chosen: list[str], workload: Workload, plan: Plan, descriptions: dict[str, Description]
) -> Outcome:
    names = [name for name in chosen if name in ttft.CONTESTANTS]
    with started(names, descriptions) as contestants, progress("ttft", ttft.count_steps(names, plan)) as tick:
        measured = ttft.measure(contestants, workload, plan, tick)
    absolutes = {name: ttft.absolutes(times) for name, times in measured.items()}
    at_longest = {name: times[plan.longest] for name, times in measured.items()}
    return Outcome(
        "ttft", ttft.figures(measured, plan), absolutes, [] if plan.is_quick else find_voids(at_longest)
    )


def measure_fanout(
    chosen: list[str], workload: Workload, plan: Plan, descriptions: dict[str, Description]
) -> Outcome:
    names = [name for name in chosen if name in fanout.CONTESTANTS]
    steps = fanout.count_steps(names, plan)
    with started(names, descriptions) as contestants, progress("fanout", steps) as tick:
        measured = fanout.measure(contestants, workload, plan, tick)
    absolutes = {name: fanout.absolutes(runs) for name, runs in measured.runs.items()}
    return Outcome(
        "fanout",
        fanout.figures(measured.runs, plan),
        absolutes,
        [] if plan.is_quick else find_voids(measured.alone),
    )


def choose_peers(given: str | None) -> list[str]:
    names = (
        installed_peers() if given is None else [name.strip() for name in given.split(",") if name.strip()]
    )
    for name in names:
        if name not in PEERS:
            raise typer.BadParameter(f"{name} is none of {', '.join(PEERS)}", param_hint="--peers")
        if not ROSTER[name].is_here():
            raise typer.BadParameter(
                f"{name} is not installed: make bench installs the peers", param_hint="--peers"
            )
    return names


def quiet_load() -> tuple[float, float, float]:
    with Console(stderr=True).status("waiting until the machine is quiet") as status:
        return wait_until_quiet(
            lambda now: status.update(f"waiting until the machine is quiet: load {now:.1f}")
        )


@contextmanager
def started(names: list[str], descriptions: dict[str, Description]) -> Iterator[dict[str, Remote]]:
    """Every contestant in a process of its own, ready; ended on leaving."""
    with ExitStack() as running:
        contestants = {}
        with progress("starting", len(names)) as tick:
            for name in names:
                tick(ROSTER[name].title)
                contestants[name] = running.enter_context(remote(name))
                descriptions[name] = contestants[name].description
        yield contestants


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; called with what begins now."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        done = -1

        def tick(what: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, description=f"{title}: {what}", completed=done)

        yield tick
        bar.update(task, description=title, completed=total)


def show(outcomes: list[Outcome], descriptions: dict[str, Description], around: Circumstances) -> None:
    console = Console(highlight=False, soft_wrap=True)
    machine = around.machine
    console.print(
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {' '.join(machine.flags)}"
    )
    for name, each in descriptions.items():
        console.print(described(name, each.versions, each.settings))
    for outcome in outcomes:
        console.print(overview(outcome))
        console.print(claims(outcome, around))
        for reason in outcome.voids:
            console.print(f"[red]VOID[/]: {reason}")
    for reservation in around.reservations:
        console.print(f"Reported, not judged: {reservation}.")


if __name__ == "__main__":
    app()
