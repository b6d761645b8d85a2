"""The demo's proof notices a report that differs from the rows in any figure."""

from copy import deepcopy
from typing import Any

import pytest

from billing.meters import Meter
from billing.recompute import Totals
from cli.demo.bill import is_equal

REPORT: dict[str, Any] = {
    "amountNanoUsd": 70,
    "meters": [],
    "projects": [
        {
            "projectId": "proj_a",
            "caches": [
                {
                    "cacheId": "c1",
                    "meters": [
                        {
                            "meter": "cache_read_tokens",
                            "quantity": 100,
                            "explicitQuantity": 80,
                            "implicitQuantity": 20,
                            "amountNanoUsd": 30,
                        },
                        {"meter": "input_tokens", "quantity": 0, "amountNanoUsd": 0},
                    ],
                },
                {
                    "cacheId": None,
                    "meters": [{"meter": "input_tokens", "quantity": 7, "amountNanoUsd": 40}],
                },
            ],
        }
    ],
}
TOTALS = Totals(
    quantities={
        ("proj_a", "c1", Meter.CACHE_READ_TOKENS): 100,
        ("proj_a", None, Meter.INPUT_TOKENS): 7,
    },
    amounts_nano_usd={
        ("proj_a", "c1", Meter.CACHE_READ_TOKENS): 30,
        ("proj_a", None, Meter.INPUT_TOKENS): 40,
    },
    implicit_quantities={("proj_a", "c1", Meter.CACHE_READ_TOKENS): 20},
)


def test_a_report_that_equals_the_rows_is_proved() -> None:
    assert is_equal(REPORT, TOTALS)


@pytest.mark.parametrize("name", ["quantity", "amountNanoUsd"])
@pytest.mark.parametrize("cache", [0, 1])
def test_a_figure_that_differs_by_one_is_noticed(name: str, cache: int) -> None:
    wrong = deepcopy(REPORT)
    wrong["projects"][0]["caches"][cache]["meters"][0][name] += 1
    assert not is_equal(wrong, TOTALS)


def test_an_implicit_hit_that_is_told_wrong_is_noticed() -> None:
    wrong = deepcopy(REPORT)
    wrong["projects"][0]["caches"][0]["meters"][0]["implicitQuantity"] -= 1
    assert not is_equal(wrong, TOTALS)


def test_a_wrong_sum_is_noticed() -> None:
    assert not is_equal(REPORT | {"amountNanoUsd": 71}, TOTALS)


def test_a_missing_cache_is_noticed() -> None:
    wrong = deepcopy(REPORT)
    del wrong["projects"][0]["caches"][1]
    assert not is_equal(wrong, TOTALS)
