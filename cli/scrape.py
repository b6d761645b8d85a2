"""Reading metrics over HTTP, as Prometheus does, and what can be worked out from them."""

import math
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from core.errors import InvalidArgument, Unavailable

_TIMEOUT_SECONDS = 5
_LARGEST_BYTES = 16 << 20
Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram: how many were observed, their sum, and (upper bound, how many are not above it), in order."""

    count: float
    total: float
    buckets: tuple[tuple[float, float], ...]

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def quantile(self, part: float) -> float | None:
        """Estimated as Prometheus does, as if values lay evenly within their bucket; at most the last finite bound."""
        rank, below, counted = part * self.count, 0.0, 0.0
        for bound, count in self.buckets:
            if count and count >= rank:
                if math.isinf(bound):
                    return below
                return below + (bound - below) * (rank - counted) / (count - counted)
            below, counted = bound, count
        return None


class Samples:
    """What a server told of itself in one answer."""

    def __init__(self, text: str) -> None:
        """Raises ValueError where this is no text of Prometheus' form."""
        self._values: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        self.families: set[str] = set()
        for family in text_string_to_metric_families(text):
            self.families.add(family.name)
            for sample in family.samples:
                self._values[sample.name].append((sample.labels, sample.value))

    def each(self, name: str) -> list[tuple[Labels, float]]:
        """All series of a name: labels and value."""
        return self._values.get(name, [])

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels."""
        return sum(value for found, value in self.each(name) if labels.items() <= found.items())

    def distributions(self, name: str) -> Iterator[tuple[Labels, Distribution]]:
        """Each series of a histogram in which something was observed."""
        for labels, count in self.each(f"{name}_count"):
            if count:
                buckets = [
                    (float(found["le"]), value)
                    for found, value in self.each(f"{name}_bucket")
                    if labels.items() <= found.items()
                ]
                yield labels, Distribution(count, self.total(f"{name}_sum", **labels), tuple(sorted(buckets)))


def scrape(url: str) -> Samples:
    """Ask for the metrics. Raises Unavailable where nothing answers, or nothing of that kind."""
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"{url} is no address of metrics: write it as http://127.0.0.1:9464/metrics.", field="metrics_url"
        )
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    try:
        with straight.open(url, timeout=_TIMEOUT_SECONDS) as answer:
            text = answer.read(_LARGEST_BYTES)
    except (OSError, HTTPException) as error:
        raise Unavailable(
            f"No metrics at {url} ({getattr(error, 'reason', error)}). Start `headstart serve`, or name where it serves them with --metrics-url "
            "or HEADSTART_METRICS_PORT."
        ) from error
    try:
        return Samples(text.decode())
    except ValueError as error:
        raise Unavailable(
            f"What answers at {url} tells no metrics. Check --metrics-url or HEADSTART_METRICS_PORT."
        ) from error
