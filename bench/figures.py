"""From measurements to the figures that are claimed: ratios to the peer, what they must reach, what makes a run void."""

import statistics
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

HIGHEST_HIT_SHARE = (
    0.05  # of a peer's own cold: above it the peer does not reuse its prefix, and the run is void
)


class Verdict(StrEnum):
    AIM = "reaches the aim"
    MUST = "reaches the must"
    MISSED = "misses the must"


@dataclass(frozen=True, slots=True)
class Target:
    must: float
    aim: float

    def verdict(self, value: float) -> Verdict:
        """Less is better where the aim is below the must."""
        sign = 1 if self.aim < self.must else -1
        if sign * value <= sign * self.aim:
            return Verdict.AIM
        return Verdict.MUST if sign * value <= sign * self.must else Verdict.MISSED


TARGETS = {
    "hit_ttft_ratio_vs_openvino": Target(must=0.8, aim=0.35),
    "http_hit_ttft_ratio_vs_openvino": Target(must=1.1, aim=0.5),
    "openvino_cold_over_our_hit": Target(must=35, aim=100),
    "throughput_ratio_vs_openvino": Target(must=1.3, aim=3),
    "throughput_ratio_vs_openvino_8": Target(must=1.1, aim=2),
    "memory_growth_ratio": Target(must=1.3, aim=1.1),
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


def ratio(value: float | None, other: float | None) -> float | None:
    """None where either was not measured."""
    return value / other if value is not None and other else None


def find_void(peer: str, cold_s: float | None, hit_s: float | None) -> str | None:
    """Why the run is void: a peer that computes its prefix again is no peer."""
    share = ratio(hit_s, cold_s)
    if share is None or share <= HIGHEST_HIT_SHARE:
        return None
    return f"{peer}'s hit takes {share:.1%} of its own cold, and may take {HIGHEST_HIT_SHARE:.0%} at most"
