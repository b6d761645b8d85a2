"""Time to first text: with a prefix that nobody has seen, and with one that is kept.

Every figure is a median, from text to text. Contestants take turns, question by question, and never two compute at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from bench.contestant import Asking
from bench.figures import Times, median, ratio
from bench.plan import Plan
from bench.roster import GENERATE, LLAMA, OPENVINO, OURS, OURS_HTTP
from bench.workload import Document, Workload

CONTESTANTS = (OURS, OURS_HTTP, OPENVINO, GENERATE, LLAMA)
REPEATED = (OURS, OPENVINO)  # whose cold is claimed; the others' is told once

Measured = dict[str, dict[int, Times]]


def count_steps(names: list[str], plan: Plan) -> int:
    """How often `measure` calls tick."""
    colds = len(plan.lengths) * len(names) + (plan.cold_rounds - 1) * len([n for n in names if n in REPEATED])
    return colds + len(names) * sum(1 + plan.hits(length) for length in plan.lengths)


def measure(
    contestants: Mapping[str, Asking], workload: Workload, plan: Plan, tick: Callable[[str], None]
) -> Measured:
    """Ask everybody the same questions about documents of each length."""
    measured: Measured = {name: {} for name in contestants}
    for length in plan.lengths:
        for name in contestants:
            measured[name][length] = Times()
        documents = _measure_cold(contestants, workload, plan, length, measured, tick)
        for number in range(1 + plan.hits(length)):
            question = workload.question()
            for name, contestant in contestants.items():
                tick(f"{length:,} tokens kept: {name}")
                asked = contestant.ask(workload.prompt(documents[name], question), plan.output_tokens)
                if number:  # the first one warms up
                    measured[name][length].add_hit(asked.first_text_s, asked.token_s)
    return measured


def _measure_cold(
    contestants: Mapping[str, Asking],
    workload: Workload,
    plan: Plan,
    length: int,
    measured: Measured,
    tick: Callable[[str], None],
) -> dict[str, Document]:
    """A new document each time. Gives the one that each contestant keeps in the end."""
    documents: dict[str, Document] = {}
    for number in range(plan.cold_rounds if length == plan.longest else 1):
        for name, contestant in contestants.items():
            if number == 0 or name in REPEATED:
                tick(f"{length:,} new tokens: {name}")
                documents[name] = workload.document(length)
                measured[name][length].cold.append(contestant.keep(documents[name]).seconds)
    return documents


def figures(measured: Measured, plan: Plan) -> dict[str, float | None]:
    """What is claimed of the longest documents, and our own speed."""
    at = {name: by_length[plan.longest] for name, by_length in measured.items()}
    ours, http, peer = (at.get(name, Times()) for name in (OURS, OURS_HTTP, OPENVINO))
    return {
        "hit_ttft_ratio_vs_openvino": ratio(median(ours.hit), median(peer.hit)),
        "http_hit_ttft_ratio_vs_openvino": ratio(median(http.hit), median(peer.hit)),
        "openvino_cold_over_our_hit": ratio(median(peer.cold), median(ours.hit)),
        "cold_prefill_s": median(ours.cold),
        "cold_prefill_tokens_per_s": ratio(plan.longest, median(ours.cold)),
        "token_ms": ratio(median(ours.token), 1e-3),
        **{f"hit_ttft_ms_{length}": ratio(median(t.hit), 1e-3) for length, t in measured[OURS].items()},
        "http_hit_ttft_ms": ratio(median(http.hit), 1e-3),
        "openvino_hit_ttft_ms": ratio(median(peer.hit), 1e-3),
        "openvino_cold_s": median(peer.cold),
    }


def absolutes(times: dict[int, Times]) -> dict[str, Any]:
    """One contestant's medians and repetitions, by length."""
    return {str(length): each.absolutes() for length, each in times.items()}
