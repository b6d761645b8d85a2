"""What a server's metrics say about its model, worked out for people: rates, quantiles, means."""

from collections.abc import Mapping
from dataclasses import dataclass

from cli.scrape import Samples
from core.errors import Unavailable


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Times to first token of the requests of one kind that read from one tier."""

    kind: str
    tier: str
    count: int
    median_seconds: float | None
    p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """size: bytes."""

    tier: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class Budget:
    """used, limit: bytes."""

    used: int
    limit: int

    @property
    def part(self) -> float | None:
        return self.used / self.limit if self.limit else None


@dataclass(frozen=True, slots=True)
class Figures:
    """Totals are since the server's start; mappings are by the metric's one label. None: nothing was observed so far."""

    name: str
    fingerprint: str
    dtype: str
    device: str
    prompt_tokens: Mapping[str, int]
    hit_rates: Mapping[str, float | None]
    prefill_tokens_skipped: int
    first_tokens: tuple[FirstToken, ...]
    kv_bytes: tuple[Memory, ...]
    pin_budget: Budget
    evicted_tokens: Mapping[str, int]
    demoted_tokens: int
    promoted_tokens: Mapping[str, int]
    lost_tokens: int
    choices: Mapping[str, int]
    rejected_files: Mapping[str, int]
    rebuilds: Mapping[str, int]
    requests: Mapping[str, int]
    builds: int
    step_seconds: float | None
    step_decode_rows: float | None
    step_prefill_tokens: float | None

    def as_json(self) -> dict[str, object]:
        return {
            "model": {
                "name": self.name,
                "fingerprint": self.fingerprint,
                "dtype": self.dtype,
                "device": self.device,
            },
            "promptTokens": dict(self.prompt_tokens),
            "tokenHitRate": dict(self.hit_rates),
            "prefillTokensSkipped": self.prefill_tokens_skipped,
            "timeToFirstToken": [
                {
                    "kind": first.kind,
                    "tier": first.tier,
                    "count": first.count,
                    "medianSeconds": first.median_seconds,
                    "p95Seconds": first.p95_seconds,
                }
                for first in self.first_tokens
            ],
            "kvBytes": [{"tier": m.tier, "kind": m.kind, "bytes": m.size} for m in self.kv_bytes],
            "pinBudget": {"usedBytes": self.pin_budget.used, "limitBytes": self.pin_budget.limit},
            "evictedTokens": dict(self.evicted_tokens),
            "demotedTokens": self.demoted_tokens,
            "promotedTokens": dict(self.promoted_tokens),
            "lostTokens": self.lost_tokens,
            "choices": dict(self.choices),
            "rejectedFiles": dict(self.rejected_files),
            "rebuilds": dict(self.rebuilds),
            "requests": dict(self.requests),
            "builds": self.builds,
            "steps": {
                "meanSeconds": self.step_seconds,
                "meanDecodeRows": self.step_decode_rows,
                "meanPrefillTokens": self.step_prefill_tokens,
            },
        }


def figures(samples: Samples) -> Figures:
    """Raises Unavailable where a server of ours has no model yet, and where it is no server of ours."""
    model = next((labels for labels, _ in samples.each("headstart_model_info")), None)
    if model is None:
        if "headstart_model_info" in samples.families:
            raise Unavailable(
                "The server is starting: its model is not loaded yet. Try again in a moment.",
                retry_after_seconds=1,
            )
        raise Unavailable(
            "What answers there is no Headstart. Check --metrics-url or HEADSTART_METRICS_PORT."
        )
    prompt_tokens = _by(samples, "headstart_prompt_tokens_total", "source")
    asked = sum(prompt_tokens.values())
    return Figures(
        name=model["model"],
        fingerprint=model["fingerprint"],
        dtype=model["dtype"],
        device=model["device"],
        prompt_tokens=prompt_tokens,
        hit_rates={
            source: prompt_tokens.get(source, 0) / asked if asked else None
            for source in ("explicit", "implicit")
        },
        prefill_tokens_skipped=int(samples.total("headstart_prefill_tokens_skipped_total")),
        first_tokens=tuple(
            FirstToken(labels["kind"], labels["tier"], int(d.count), d.quantile(0.5), d.quantile(0.95))
            for labels, d in samples.distributions("headstart_time_to_first_token_seconds")
        ),
        kv_bytes=tuple(
            Memory(labels["tier"], labels["kind"], int(value))
            for labels, value in samples.each("headstart_kv_bytes")
        ),
        pin_budget=Budget(
            int(samples.total("headstart_kv_pin_budget_used_bytes")),
            int(samples.total("headstart_kv_pin_budget_bytes")),
        ),
        evicted_tokens=_by(samples, "headstart_kv_evicted_tokens_total", "tier"),
        demoted_tokens=int(samples.total("headstart_kv_demoted_tokens_total")),
        promoted_tokens=_by(samples, "headstart_kv_promoted_tokens_total", "tier"),
        lost_tokens=int(samples.total("headstart_kv_lost_tokens_total")),
        choices=_by(samples, "headstart_kv_choices_total", "choice"),
        rejected_files=_by(samples, "headstart_kv_files_rejected_total", "reason"),
        rebuilds=_by(samples, "headstart_rebuilds_total", "reason"),
        requests=_by(samples, "headstart_requests", "state"),
        builds=int(samples.total("headstart_builds")),
        step_seconds=_mean(samples, "headstart_step_seconds"),
        step_decode_rows=_mean(samples, "headstart_step_decode_rows"),
        step_prefill_tokens=_mean(samples, "headstart_step_prefill_tokens"),
    )


def _by(samples: Samples, name: str, label: str) -> dict[str, int]:
    return {labels[label]: int(value) for labels, value in samples.each(name)}


def _mean(samples: Samples, name: str) -> float | None:
    return next((distribution.mean for _, distribution in samples.distributions(name)), None)
