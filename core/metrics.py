"""What a server tells of itself, in Prometheus form: every instrument once. Names, labels and meanings stand in docs/metrics.md.

A label never holds anything that a customer chose, and no project's id: each has a few values that are known beforehand.
"""

from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# The instant at which each series began says nothing here: all begin with the process.
disable_created_metrics()  # type: ignore[no-untyped-call]

_LATENCY_SECONDS = tuple(0.005 * 2**power for power in range(18))  # 5 ms to 11 minutes
_STEP_SECONDS = tuple(0.001 * 2**power for power in range(15))  # 1 ms to 16 s
_ROWS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_CHUNK_TOKENS = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


# One for the process, for whoever stamps an event knows no more of it than a clock.
CLOCK_SETBACKS = Counter(
    "headstart_clock_setbacks_total",
    "Events that the clock would have put more than a second before the one preceding them.",
    registry=None,
)


class Metrics:
    """The instruments of one process, in a registry of its own.

    Counters and histograms are written by whoever does the work; gauges are read from the engine when they are asked for.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.clock_setbacks = CLOCK_SETBACKS
        self.registry.register(self.clock_setbacks)
        self.model_info = self._gauge(
            "headstart_model_info",
            "1, for the model that is served.",
            ("model", "fingerprint", "dtype", "device"),
        )
        self.prompt_tokens = self._counter(
            "headstart_prompt_tokens_total",
            "Tokens of prompts, named caches included, by where their KV came from. Counted with a request's first token.",
            ("source",),
        )
        self.prefill_tokens = self._counter(
            "headstart_prefill_tokens_total",
            "Tokens of prompts and caches that were computed, by what for.",
            ("work",),
        )
        self.prefill_tokens_skipped = self._counter(
            "headstart_prefill_tokens_skipped_total",
            "Tokens of prompts, named caches included, that were not computed, because their KV was there.",
        )
        self.billing_findings = self._gauge(
            "headstart_billing_findings",
            "What the last scheduled reconciliation of the ledger found wrong. Anything but 0 needs somebody.",
        )
        self.billing_findings.set(nan)  # nobody has looked
        self.billing_verified_at = self._gauge(
            "headstart_billing_verified_timestamp_seconds",
            "When the last scheduled reconciliation of the ledger was finished, in seconds since 1970.",
        )
        self.billing_passed_over = self._gauge(
            "headstart_billing_passed_over",
            "Rows and segments that are owed and could not be posted when it was last tried.",
        )
        self.soft_limits_reached = self._counter(
            "headstart_soft_limits_reached_total",
            "Soft limits of spending that a project or a key has reached; each counts once a month.",
            ("whose",),
        )
        self.time_to_first_token = self._histogram(
            "headstart_time_to_first_token_seconds",
            "From when the worker takes a request to its first token.",
            ("kind", "tier"),
            _LATENCY_SECONDS,
        )
        self.kv_bytes = self._gauge(
            "headstart_kv_bytes", "Memory for KV, by what it holds.", ("tier", "kind")
        )
        self.kv_pin_budget_bytes = self._gauge(
            "headstart_kv_pin_budget_bytes", "KV that caches may hold at most, in whatever tier."
        )
        self.kv_pin_budget_used_bytes = self._gauge(
            "headstart_kv_pin_budget_used_bytes",
            "KV that caches hold, each block once, in whatever tier.",
        )
        self.kv_evicted_tokens = self._counter(
            "headstart_kv_evicted_tokens_total", "Tokens whose KV a tier dropped to make room.", ("tier",)
        )
        self.kv_demoted_tokens = self._counter(
            "headstart_kv_demoted_tokens_total",
            "Tokens whose KV left the device to make room, and lies below.",
        )
        self.kv_promoted_tokens = self._counter(
            "headstart_kv_promoted_tokens_total", "Tokens whose KV was brought to the device.", ("tier",)
        )
        self.kv_choices = self._counter(
            "headstart_kv_choices_total",
            "How often KV below the device was wanted and, by measured rates, loaded or computed again.",
            ("choice",),
        )
        self.kv_lost_tokens = self._counter(
            "headstart_kv_lost_tokens_total", "Tokens of caches whose KV could not be had any more."
        )
        self.kv_files_rejected = self._counter(
            "headstart_kv_files_rejected_total", "KV files that were not used, and removed.", ("reason",)
        )
        self.rebuilds = self._counter(
            "headstart_rebuilds_total", "Caches whose lost KV was computed again.", ("reason",)
        )
        self.requests = self._gauge(
            "headstart_requests", "Requests in the engine; each answer of several counts.", ("state",)
        )
        self.builds = self._gauge(
            "headstart_builds", "Builds and rebuilds of caches that go on or wait for room."
        )
        self.step_seconds = self._histogram(
            "headstart_step_seconds", "How long a step took.", (), _STEP_SECONDS
        )
        self.step_decode_rows = self._histogram(
            "headstart_step_decode_rows", "Answers that got a token in a step.", (), _ROWS
        )
        self.step_prefill_tokens = self._histogram(
            "headstart_step_prefill_tokens",
            "Tokens of prompts and caches that were computed in a step.",
            (),
            _CHUNK_TOKENS,
        )

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(name, meaning, labels, registry=self.registry, buckets=buckets)
