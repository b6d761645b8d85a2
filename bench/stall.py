"""A long prefix is created while streams answer: how long they wait for their tokens, and how long it takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.contestant import KeptBeside, Streaming
from bench.figures import median, nearest_rank, ratio
from bench.plan import Plan
from bench.roster import OURS
from bench.workload import Workload

STREAMS = 8
_PROMPTS = 5 * STREAMS  # a stream takes the next when it is done; more than these are seldom needed


@dataclass(slots=True)
class Measured:
    """alone_s: of each create without streams."""

    alone_s: list[float] = field(default_factory=list)
    beside: list[KeptBeside] = field(default_factory=list)

    @property
    def quiet_p50s(self) -> list[float]:
        return _ranks([each.quiet_gaps_s for each in self.beside], 0.5)

    @property
    def p99s(self) -> list[float]:
        return _ranks([each.gaps_s for each in self.beside], 0.99)

    @property
    def create_s(self) -> list[float]:
        return [each.seconds for each in self.beside]


def count_steps(plan: Plan) -> int:
    return 1 + 2 * plan.stall_rounds


def measure(contestant: Streaming, workload: Workload, plan: Plan, tick: Callable[[str], None]) -> Measured:
    """The streams ask about a short document that is kept; each create is of a new long one, alone and beside them in turn."""
    measured = Measured()
    tick("a document for the streams")
    streamed = workload.document(plan.lengths[0])
    contestant.keep(streamed)
    for _ in range(plan.stall_rounds):
        tick("a create alone")
        document = workload.document(plan.longest)
        measured.alone_s.append(contestant.keep_too(document).seconds)
        contestant.forget(document)
        tick(f"a create beside {STREAMS} streams")
        document = workload.document(plan.longest)
        prompts = [workload.prompt(streamed, workload.question()) for _ in range(_PROMPTS)]
        measured.beside.append(contestant.keep_beside(document, prompts, STREAMS, plan.stream_tokens))
        contestant.forget(document)
    return measured


def figures(measured: Measured) -> dict[str, float | None]:
    quiet, p99 = median(measured.quiet_p50s), median(measured.p99s)
    alone, beside = median(measured.alone_s), median(measured.create_s)
    return {
        "intertoken_p99_ratio": ratio(p99, quiet),
        "create_time_ratio": ratio(beside, alone),
        "intertoken_quiet_p50_ms": ratio(quiet, 1e-3),
        "intertoken_p99_ms": ratio(p99, 1e-3),
        "create_alone_s": alone,
        "create_beside_s": beside,
    }


def absolutes(measured: Measured) -> dict[str, dict[str, Any]]:
    gaps = [each.gaps_s for each in measured.beside]
    size = {
        "create_alone_s": median(measured.alone_s),
        "create_beside_s": median(measured.create_s),
        "quiet_p50_s": median(measured.quiet_p50s),
        "quiet_p99_s": median(_ranks([each.quiet_gaps_s for each in measured.beside], 0.99)),
        "p50_s": median(_ranks(gaps, 0.5)),
        "p99_s": median(measured.p99s),
        "longest_s": median(_ranks(gaps, 1.0)),
        "tokens_meanwhile": median([float(len(each)) for each in gaps]),
        "creates_alone_s": measured.alone_s,
        "creates_beside_s": measured.create_s,
        "quiet_p50s_s": measured.quiet_p50s,
        "p99s_s": measured.p99s,
    }
    return {OURS: {f"{STREAMS} streams": size}}


def find_voids(measured: Measured) -> list[str]:
    """No token came while the prefix was created, or none before."""
    return [
        f"round {number}: the streams had no token {when}"
        for number, each in enumerate(measured.beside)
        for when, gaps in (("in quiet", each.quiet_gaps_s), ("meanwhile", each.gaps_s))
        if not gaps
    ]


def _ranks(rounds: list[list[float]], share: float) -> list[float]:
    ranks = [nearest_rank(gaps, share) for gaps in rounds]
    return [rank for rank in ranks if rank is not None]
