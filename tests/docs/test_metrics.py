"""Every metric has its row in docs/metrics.md, in the words of its own description, and no label can hold a customer's words."""

from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from core.metrics import Metrics

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
UNITS = {"seconds": "seconds", "bytes": "bytes", "tokens": "tokens", "rows": "rows"}
LABELS = {
    "choice",
    "model",
    "fingerprint",
    "dtype",
    "device",
    "source",
    "work",
    "kind",
    "tier",
    "reason",
    "state",
    "whose",
}


def instruments() -> dict[str, MetricWrapperBase]:
    """Name → instrument; a counter by the name of its series."""
    made = [each for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase)]
    return {each._name + ("_total" if each._type == "counter" else ""): each for each in made}


def documented() -> dict[str, list[str]]:
    """Name → the other cells of its row."""
    rows = [line[1:-1].split("|") for line in PAGE.splitlines() if line.startswith("| `headstart_")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


@pytest.mark.parametrize("name", instruments())
def test_each_metric_is_described_as_in_the_code(name: str) -> None:
    instrument, (kind, labels, unit, meaning) = instruments()[name], documented()[name]
    assert (kind, meaning) == (instrument._type, instrument._documentation)
    assert labels == ", ".join(f"`{label}`" for label in instrument._labelnames)
    named = [each for ending, each in UNITS.items() if name.removesuffix("_total").endswith(f"_{ending}")]
    assert unit == named[0] if named else unit in {"", "caches", "requests", "builds", "tokens", "files"}


def test_no_metric_is_documented_that_does_not_exist() -> None:
    assert set(documented()) == set(instruments())


def test_each_instrument_is_in_the_registry() -> None:
    families = {family.name for family in Metrics().registry.collect()}
    assert families == {name.removesuffix("_total") for name in instruments()}


def test_labels_are_few_and_documented() -> None:
    used = {label for instrument in instruments().values() for label in instrument._labelnames}
    assert used == LABELS
    described = PAGE.partition("## Labels")[2]
    for label in used - {"model", "fingerprint", "dtype", "device"}:
        assert f"| `{label}`" in described
