"""Two caches that begin alike: how much KV the engine holds for them, over what their different tokens take."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.contestant import Held, Storing
from bench.figures import ratio
from bench.plan import Plan
from bench.roster import OURS
from bench.workload import Workload

STEPS = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """before, after: what the engine holds without the two and with both. distinct_tokens: what they share counts once."""

    before: Held
    after: Held
    tokens: int
    distinct_tokens: int
    first_s: float
    second_s: float

    @property
    def kv_bytes(self) -> int:
        return self.after.kv_bytes - self.before.kv_bytes

    @property
    def distinct_bytes(self) -> int:
        return self.distinct_tokens * self.after.token_bytes


def measure(contestant: Storing, workload: Workload, plan: Plan, tick: Callable[[str], None]) -> Measured:
    first, second, distinct = workload.pair(plan.shared_tokens, plan.sharing_tokens)
    before = contestant.held()
    tick("the first cache")
    first_s = contestant.keep_too(first).seconds
    tick("the second")
    second_s = contestant.keep_too(second).seconds
    return Measured(before, contestant.held(), first.tokens + second.tokens, distinct, first_s, second_s)


def figures(measured: Measured) -> dict[str, float | None]:
    return {"kv_ratio": ratio(measured.kv_bytes, measured.distinct_bytes)}


def absolutes(measured: Measured) -> dict[str, dict[str, Any]]:
    size = {
        "tokens": measured.tokens,
        "distinct_tokens": measured.distinct_tokens,
        "kv_mb": measured.kv_bytes / 1e6,
        "distinct_mb": measured.distinct_bytes / 1e6,
        "first_create_s": measured.first_s,
        "second_create_s": measured.second_s,
    }
    return {OURS: {"2 caches": size}}
