"""Every benchmark that `bench all` runs: who takes part, what it gives, and why it is void where it is."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import fanout, lookup, restart, sharing, stall, tiers, ttft
from bench.contestant import Description
from bench.figures import find_voids
from bench.plan import Plan
from bench.progress import progress
from bench.remote import Remote, remote
from bench.report import Outcome
from bench.roster import OURS, ROSTER
from bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Run:
    """chosen: the contestants that take part where there are several. descriptions: of those that were started so far."""

    chosen: list[str]
    workload: Workload
    plan: Plan
    descriptions: dict[str, Description] = field(default_factory=dict)


def measure_ttft(run: Run) -> Outcome:
    names, plan = [name for name in run.chosen if name in ttft.CONTESTANTS], run.plan
    with _started(names, run) as contestants, progress("ttft", ttft.count_steps(names, plan)) as tick:
        measured = ttft.measure(contestants, run.workload, plan, tick)
    absolutes = {name: ttft.absolutes(times) for name, times in measured.items()}
    at_longest = {name: times[plan.longest] for name, times in measured.items()}
    voids = [] if plan.is_quick else find_voids(at_longest)
    return Outcome("ttft", ttft.figures(measured, plan), absolutes, voids)


def measure_fanout(run: Run) -> Outcome:
    names, plan = [name for name in run.chosen if name in fanout.CONTESTANTS], run.plan
    with _started(names, run) as contestants, progress("fanout", fanout.count_steps(names, plan)) as tick:
        measured = fanout.measure(contestants, run.workload, plan, tick)
    absolutes = {name: fanout.absolutes(runs) for name, runs in measured.runs.items()}
    voids = [] if plan.is_quick else find_voids(measured.alone)
    return Outcome("fanout", fanout.figures(measured.runs, plan), absolutes, voids)


def measure_sharing(run: Run) -> Outcome:
    with _started([OURS], run) as contestants, progress("sharing", sharing.STEPS) as tick:
        measured = sharing.measure(contestants[OURS], run.workload, run.plan, tick)
    return Outcome("sharing", sharing.figures(measured), sharing.absolutes(measured), [])


def measure_stall(run: Run) -> Outcome:
    with _started([OURS], run) as contestants, progress("stall", stall.count_steps(run.plan)) as tick:
        measured = stall.measure(contestants[OURS], run.workload, run.plan, tick)
    return Outcome("stall", stall.figures(measured), stall.absolutes(measured), stall.find_voids(measured))


def measure_restart(run: Run) -> Outcome:
    with progress("restart", restart.count_steps(run.plan)) as tick:
        measured = restart.measure(lambda home: _ours(home, run), run.workload, run.plan, tick)
    return Outcome(
        "restart", restart.figures(measured), restart.absolutes(measured, run.plan), measured.voids
    )


def measure_tiers(run: Run) -> Outcome:
    with progress("tiers", tiers.count_steps(run.plan)) as tick:
        measured = tiers.measure(lambda home: _ours(home, run), run.workload, run.plan, tick)
    return Outcome("tiers", tiers.figures(measured), tiers.absolutes(measured, run.plan), measured.voids)


def measure_lookup(run: Run) -> Outcome:
    with progress("lookup", lookup.count_steps(run.plan)) as tick:
        measured = lookup.measure(run.plan, tick)
    return Outcome("lookup", lookup.figures(measured), lookup.absolutes(measured), [])


# In the order of `bench all`.
BENCHMARKS: dict[str, Callable[[Run], Outcome]] = {
    "ttft": measure_ttft,
    "fanout": measure_fanout,
    "sharing": measure_sharing,
    "stall": measure_stall,
    "restart": measure_restart,
    "tiers": measure_tiers,
    "lookup": measure_lookup,
}


@contextmanager
def _started(names: list[str], run: Run) -> Iterator[dict[str, Remote]]:
    """Every contestant in a process of its own, ready; ended on leaving."""
    with ExitStack() as running:
        contestants = {}
        with progress("starting", len(names)) as tick:
            for name in names:
                tick(ROSTER[name].title)
                contestants[name] = running.enter_context(remote(name))
                run.descriptions[name] = contestants[name].description
        yield contestants


@contextmanager
def _ours(home: Path, run: Run) -> Iterator[Remote]:
    """Our side, upon a folder that stays."""
    with remote(OURS, home) as ours:
        run.descriptions[OURS] = ours.description
        yield ours
