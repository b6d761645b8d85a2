"""Figures of the benchmarks that have no peers."""

import pytest

from bench import restart, sharing, stall, tiers
from bench.contestant import Held, KeptBeside
from bench.figures import TARGETS, Verdict, nearest_rank


def test_kv_over_the_bytes_of_distinct_tokens() -> None:
    measured = sharing.Measured(Held(100, 10), Held(740, 10), 100, 60, 2.0, 1.0)
    assert sharing.figures(measured) == {"kv_ratio": pytest.approx(640 / 600)}
    assert sharing.absolutes(measured)["headstart"]["2 caches"]["distinct_tokens"] == 60


def test_streams_and_a_create_beside_each_other() -> None:
    meanwhile = [0.2] * 98 + [0.6, 5.0]
    measured = stall.Measured(
        [10.0, 50.0, 12.0],
        [
            KeptBeside(15.0, [0.1, 0.2, 0.3], meanwhile),
            KeptBeside(18.0, [0.2] * 3, meanwhile),
            KeptBeside(99.0, [9.0] * 3, [9.0] * 100),
        ],
    )
    assert stall.figures(measured) == {
        "intertoken_p99_ratio": pytest.approx(0.6 / 0.2),
        "create_time_ratio": pytest.approx(18 / 12),
        "intertoken_quiet_p50_ms": pytest.approx(200),
        "intertoken_p99_ms": pytest.approx(600),
        "create_alone_s": 12.0,
        "create_beside_s": 18.0,
    }
    assert stall.absolutes(measured)["headstart"]["8 streams"]["longest_s"] == 5.0
    assert stall.find_voids(measured) == []


def test_streams_that_stand_still_void_the_run() -> None:
    measured = stall.Measured([1.0], [KeptBeside(1.0, [0.1], [])])
    assert stall.figures(measured)["intertoken_p99_ratio"] is None
    assert stall.find_voids(measured) == ["round 0: the streams had no token meanwhile"]


def test_the_first_hit_after_a_restart() -> None:
    seen = restart.figures(restart.Measured([20.0, 10.0, 12.0], [0.6, 0.5, 9.0]))
    assert seen["hit_over_cold"] == pytest.approx(0.05)
    assert restart.figures(restart.Measured())["hit_over_cold"] is None


def test_what_the_disk_adds() -> None:
    measured = tiers.Measured([0.8, 0.9, 7.0], [0.1, 0.2, 0.3], [0.5, 0.4, 0.6])
    assert tiers.figures(measured)["disk_ratio"] == pytest.approx((0.9 - 0.2) / 0.5)
    assert tiers.figures(tiers.Measured())["disk_ratio"] is None


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0), (0.25, 1.0)]
)
def test_nearest_rank(share: float, expected: float) -> None:
    assert nearest_rank([4.0, 1.0, 3.0, 2.0], share) == expected
    assert nearest_rank([], share) is None


def test_without_an_aim_there_is_the_must_alone() -> None:
    target = TARGETS["kv_ratio"]
    assert target.sign == "≤"
    assert target.verdict(1.05) is Verdict.MUST
    assert target.verdict(0.5) is Verdict.MUST
    assert target.verdict(1.06) is Verdict.MISSED
