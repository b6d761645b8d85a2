"""`python -m bench`: runs a benchmark, prints what was seen, and one JSON object as the last line."""

import json
import time
from typing import Annotated

import typer
from rich.console import Console

from bench.billing.command import billing_command
from bench.contestant import Description
from bench.document import write_page
from bench.invariants import SEED, WALK_OPERATIONS, count_walks, explore
from bench.ledger.command import report_command
from bench.machine import load, this_machine, wait_until_quiet
from bench.plan import FULL, QUICK, Plan
from bench.progress import progress
from bench.remote import ContestantFailed
from bench.report import Circumstances, Outcome, as_json, claims, described, overview, rounded
from bench.roster import OURS, OURS_HTTP, PEERS, ROSTER, installed_peers
from bench.suite import BENCHMARKS, Run
from bench.trees.violation import Violation
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
Operations = Annotated[
    int, typer.Option(min=1, help="How many, in walks that each begin with an empty tree.")
]
Seed = Annotated[int, typer.Option(help="The same seed takes the same walks.")]


@app.command("ttft")
def ttft_command(as_line: Json = False, quick: Quick = False, peers: Peers = None) -> None:
    """Time to first text, cold and kept, in process and over HTTP."""
    run("ttft", as_line, quick, peers)


@app.command("fanout")
def fanout_command(as_line: Json = False, quick: Quick = False, peers: Peers = None) -> None:
    """Many questions at once against one prefix: throughput and memory."""
    run("fanout", as_line, quick, peers)


@app.command("sharing")
def sharing_command(as_line: Json = False, quick: Quick = False) -> None:
    """Two caches that begin alike: KV held, over what their different tokens take."""
    run("sharing", as_line, quick)


@app.command("stall")
def stall_command(as_line: Json = False, quick: Quick = False) -> None:
    """Eight streams while a long prefix is created: how long both take."""
    run("stall", as_line, quick)


@app.command("restart")
def restart_command(as_line: Json = False, quick: Quick = False) -> None:
    """The first answer from a cache after a restart."""
    run("restart", as_line, quick)


@app.command("tiers")
def tiers_command(as_line: Json = False, quick: Quick = False) -> None:
    """What it adds to an answer that its KV lies on disk."""
    run("tiers", as_line, quick)


@app.command("lookup")
def lookup_command(as_line: Json = False, quick: Quick = False) -> None:
    """The longest known prefix of 8,000 tokens, in a tree of 100,000 nodes."""
    run("lookup", as_line, quick)


@app.command("all")
def all_command(as_line: Json = False, quick: Quick = False, peers: Peers = None) -> None:
    """All of the above."""
    run("all", as_line, quick, peers)


@app.command("invariants")
def invariants_command(operations: Operations = 1_000_000, seed: Seed = SEED) -> None:
    """Anything that may happen to the tree and the pool, in any order, with every count checked."""
    started, walks, error = time.perf_counter(), 0, None

    with progress("invariants", count_walks(operations)) as bar:

        def tick(walk: str) -> None:
            nonlocal walks
            walks += 1
            bar(walk)

        try:
            explore(operations, seed, tick)
        except Violation as violation:
            error = str(violation)
            typer.echo(f"Violation: {error}", err=True)
    done = operations if error is None else (walks - 1) * WALK_OPERATIONS  # of a walk that failed, none
    seen = {"operations": done, "seed": seed, "seconds": time.perf_counter() - started}
    found = {"violations": int(error is not None), "error": error}
    typer.echo(json.dumps(rounded({"benchmark": "invariants", **seen, **found})))
    if error is not None:
        raise typer.Exit(1)


app.command("billing")(billing_command)
app.command("report")(report_command)


@app.command("document")
def document_command() -> None:
    """Write the figures recorded in docs/performance.json into docs/performance.md."""
    write_page()


def run(name: str, as_line: bool, is_quick: bool, peers: str | None = "") -> None:
    """peers: names, separated by commas; None: all that are installed."""
    plan: Plan = QUICK if is_quick else FULL
    chosen = [OURS, OURS_HTTP, *choose_peers(peers)]
    load_before = load() if is_quick else quiet_load()
    _, served_model = load_served_model(load_settings(), silent)
    suite = Run(chosen, Workload(served_model.format), plan)
    try:
        outcomes = [BENCHMARKS[each](suite) for each in (BENCHMARKS if name == "all" else [name])]
    except ContestantFailed as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    ours = suite.descriptions.get(OURS)
    around = Circumstances(this_machine(), load_before, is_quick, () if ours is None else tuple(ours.changed))
    if not as_line:
        show(outcomes, suite.descriptions, around)
    typer.echo(json.dumps(as_json(name, outcomes, suite.descriptions, around)))
    if any(outcome.voids for outcome in outcomes):
        raise typer.Exit(1)


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
