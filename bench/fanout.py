"""Many questions at once against one kept prefix: tokens a second, and how far the process grows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.contestant import FannedOut, FanningOut
from bench.figures import Times, median, ratio
from bench.plan import Plan
from bench.roster import BATCHING, OPENVINO, OURS, OURS_HTTP
from bench.workload import Workload

CONTESTANTS = (OURS, OURS_HTTP, OPENVINO, BATCHING)
# It copies the whole prefix for each request in each step: a narrow round of short answers takes a minute and tells enough.
NARROW_WIDTH, NARROW_TOKENS = 8, 4

Runs = dict[str, dict[int, list[FannedOut]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """runs: of each contestant, by the number of questions at once. alone: its cold, and one question by itself."""

    runs: Runs
    alone: dict[str, Times]


def rounds(name: str, width: int, plan: Plan) -> int:
    if name == BATCHING:
        return int(width <= NARROW_WIDTH)
    return plan.fan_rounds


def count_steps(names: list[str], plan: Plan) -> int:
    return sum(2 + sum(rounds(name, width, plan) for width in plan.widths) for name in names)


def measure(
    contestants: Mapping[str, FanningOut], workload: Workload, plan: Plan, tick: Callable[[str], None]
) -> Measured:
    runs: Runs = {name: {width: [] for width in plan.widths} for name in contestants}
    alone = {name: Times() for name in contestants}
    documents = {name: workload.document(plan.longest) for name in contestants}
    for name, contestant in contestants.items():
        tick(f"{plan.longest:,} new tokens: {name}")
        alone[name].cold.append(contestant.keep(documents[name]).seconds)
        tick(f"warming up: {name}")
        first, second = (workload.prompt(documents[name], workload.question()) for _ in range(2))
        contestant.fan_out([first], NARROW_TOKENS)
        alone[name].hit.append(contestant.fan_out([second], 1).seconds)
    for width in plan.widths:
        for number in range(plan.fan_rounds):
            questions = [workload.question() for _ in range(width)]
            for name, contestant in contestants.items():
                if number < rounds(name, width, plan):
                    tick(f"{width} at once: {name}")
                    prompts = [workload.prompt(documents[name], question) for question in questions]
                    tokens = NARROW_TOKENS if name == BATCHING else plan.output_tokens
                    runs[name][width].append(contestant.fan_out(prompts, tokens))
    return Measured(runs, alone)


def throughput(runs: list[FannedOut]) -> float | None:
    """Tokens a second."""
    return median([run.output_tokens / run.seconds for run in runs])


def figures(runs: Runs, plan: Plan) -> dict[str, float | None]:
    ours, peer = runs[OURS], runs.get(OPENVINO, {})
    wide, narrow = plan.widths
    # The first round: what later ones need, the process has by then.
    first = ours[wide][0]
    return {
        "throughput_ratio_vs_openvino": ratio(throughput(ours[wide]), throughput(peer.get(wide, []))),
        "throughput_ratio_vs_openvino_8": ratio(throughput(ours[narrow]), throughput(peer.get(narrow, []))),
        "memory_growth_ratio": ratio(first.growth_bytes, first.counted_bytes),
        "memory_growth_mb": ratio(first.growth_bytes, 1e6),
        "memory_counted_mb": ratio(first.counted_bytes, 1e6),
        **{f"tokens_per_s_{width}": throughput(runs) for width, runs in ours.items()},
        **{f"openvino_tokens_per_s_{width}": throughput(runs) for width, runs in peer.items()},
    }


def absolutes(by_width: dict[int, list[FannedOut]]) -> dict[str, Any]:
    """One contestant's median and repetitions, by the number of questions at once."""
    return {
        str(width): {"tokens_per_s": throughput(runs), "seconds": [run.seconds for run in runs]}
        for width, runs in by_width.items()
        if runs
    }
