"""From measurements to the figures that are claimed: ratios to the peer, what they must reach, what makes a run void."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bench.roster import OPENVINO

HIGHEST_HIT_SHARE = (
    0.05  # of a peer's own cold: above it the peer does not reuse its prefix, and the run is void
)


class Verdict(StrEnum):
    AIM = "reaches the aim"
    MUST = "reaches the must"
    MISSED = "misses the must"


@dataclass(frozen=True, slots=True)
class Target:
    """Less is better where the aim is below the must, or where there is none."""

    must: float
    aim: float | None = None

    @property
    def is_less_better(self) -> bool:
        return self.aim is None or self.aim < self.must

    @property
    def sign(self) -> str:
        return "≤" if self.is_less_better else "≥"

    def verdict(self, value: float) -> Verdict:
        factor = 1 if self.is_less_better else -1
        if self.aim is not None and factor * value <= factor * self.aim:
            return Verdict.AIM
        return Verdict.MUST if factor * value <= factor * self.must else Verdict.MISSED


TARGETS = {
    "hit_ttft_ratio_vs_openvino": Target(must=0.8, aim=0.35),
    "http_hit_ttft_ratio_vs_openvino": Target(must=1.1, aim=0.5),
    "openvino_cold_over_our_hit": Target(must=35, aim=100),
    "throughput_ratio_vs_openvino": Target(must=1.3, aim=3),
    "throughput_ratio_vs_openvino_8": Target(must=1.1, aim=2),
    "memory_growth_ratio": Target(must=1.3, aim=1.1),
    "kv_ratio": Target(must=1.05),
    "intertoken_p99_ratio": Target(must=4),
    "create_time_ratio": Target(must=2),
    "hit_over_cold": Target(must=0.1),
    "disk_ratio": Target(must=1.5),
    "lookup_ms": Target(must=5),
    "report_s": Target(must=2),
    "accrual_s": Target(must=10),
}


@dataclass(slots=True)
class Times:
    """Every repetition of one contestant at one length, in seconds."""

    cold: list[float] = field(default_factory=list)
    hit: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)

    def add_hit(self, first_text_s: float, token_s: float | None) -> None:
        self.hit.append(first_text_s)
        if token_s is not None:
            self.token.append(token_s)

    def absolutes(self) -> dict[str, Any]:
        """The medians, and the repetitions that they are of."""
        return {
            "cold_s": median(self.cold),
            "hit_s": median(self.hit),
            "token_s": median(self.token),
            "colds_s": self.cold,
            "hits_s": self.hit,
        }


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def nearest_rank(values: list[float], share: float) -> float | None:
    """The least value that so large a share of all does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else None


def ratio(value: float | None, other: float | None) -> float | None:
    """None where either was not measured."""
    return value / other if value is not None and other else None


def find_voids(times: Mapping[str, Times]) -> list[str]:
    """Why the run is void: the peer that figures are claimed against computes its prefix again.

    Asked of long documents: of a short one the cold is too quick.
    """
    peer = times.get(OPENVINO, Times())
    share = ratio(median(peer.hit), median(peer.cold))
    if share is None or share <= HIGHEST_HIT_SHARE:
        return []
    return [
        f"{OPENVINO}'s hit takes {share:.1%} of its own cold, and may take {HIGHEST_HIT_SHARE:.0%} at most"
    ]
