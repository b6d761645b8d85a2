import pytest

from bench.contestant import Asked, FannedOut
from bench.fanout import figures as fanout_figures, rounds
from bench.figures import TARGETS, Times, Verdict, find_voids, ratio
from bench.plan import FULL, Plan
from bench.roster import BATCHING, OPENVINO, OURS, OURS_HTTP
from bench.ttft import figures as ttft_figures

LONGEST = FULL.longest


def times(*, cold: list[float], hit: list[float]) -> dict[int, Times]:
    return {length: Times(cold=cold, hit=hit, token=[0.02]) for length in FULL.lengths}


def test_ratios_are_of_medians_at_the_longest_prefix() -> None:
    measured = {
        OURS: times(cold=[20.0], hit=[0.05, 0.04, 9.0]),
        OURS_HTTP: times(cold=[21.0], hit=[0.06]),
        OPENVINO: times(cold=[4.0, 5.0, 4.5], hit=[0.1, 0.1, 0.1]),
    }
    measured[OURS][1000] = Times(hit=[0.01])
    seen = ttft_figures(measured, FULL)
    assert seen["hit_ttft_ratio_vs_openvino"] == pytest.approx(0.5)
    assert seen["http_hit_ttft_ratio_vs_openvino"] == pytest.approx(0.6)
    assert seen["openvino_cold_over_our_hit"] == pytest.approx(90)
    assert seen["hit_ttft_ms_1000"] == pytest.approx(10)
    assert seen["token_ms"] == pytest.approx(20)


def test_without_the_peer_there_is_no_ratio() -> None:
    seen = ttft_figures({OURS: times(cold=[20.0], hit=[0.05])}, FULL)
    assert seen["hit_ttft_ratio_vs_openvino"] is None
    assert seen["hit_ttft_ms_7900"] == pytest.approx(50)


def test_throughput_and_memory() -> None:
    ours = [FannedOut(4.0, 1024, 220, 200), FannedOut(2.0, 1024, 1, 200), FannedOut(4.0, 1024, 1, 200)]
    measured = {
        OURS: {32: ours, 8: [FannedOut(2.0, 256)]},
        OPENVINO: {32: [FannedOut(8.0, 1024)], 8: [FannedOut(2.0, 256)]},
    }
    seen = fanout_figures(measured, FULL)
    assert seen["throughput_ratio_vs_openvino"] == pytest.approx(2)
    assert seen["throughput_ratio_vs_openvino_8"] == pytest.approx(1)
    assert seen["memory_growth_ratio"] == pytest.approx(1.1), (
        "of the first round: later ones need nothing new"
    )


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("hit_ttft_ratio_vs_openvino", 0.35, Verdict.AIM),
        ("hit_ttft_ratio_vs_openvino", 0.8, Verdict.MUST),
        ("hit_ttft_ratio_vs_openvino", 0.81, Verdict.MISSED),
        ("openvino_cold_over_our_hit", 100, Verdict.AIM),
        ("openvino_cold_over_our_hit", 35, Verdict.MUST),
        ("openvino_cold_over_our_hit", 34.9, Verdict.MISSED),
        ("memory_growth_ratio", 1.2, Verdict.MUST),
    ],
)
def test_verdicts(name: str, value: float, verdict: Verdict) -> None:
    assert TARGETS[name].verdict(value) is verdict


def test_a_peer_that_computes_its_prefix_again_voids_the_run() -> None:
    assert find_voids({OPENVINO: Times(cold=[4.0], hit=[0.2])}) == []
    (reason,) = find_voids({OPENVINO: Times(cold=[4.0, 4.0, 9.0], hit=[0.21])})
    assert "5.2%" in reason


def test_a_peer_that_was_not_measured_voids_nothing() -> None:
    assert find_voids({OURS: Times(cold=[4.0], hit=[1.0])}) == []


def test_ratio_of_what_was_not_measured() -> None:
    assert ratio(None, 1) is None
    assert ratio(1, None) is None


def test_time_to_first_text_and_of_each_token_after_it() -> None:
    asked = Asked.from_times(10.0, [10.5, 10.6, 10.7, 10.8])
    assert asked.first_text_s == pytest.approx(0.5)
    assert asked.token_s == pytest.approx(0.1)
    assert Asked.from_times(10.0, [10.5]).token_s is None


def test_the_peer_that_copies_prefixes_is_asked_little() -> None:
    plan: Plan = FULL
    assert rounds(BATCHING, 32, plan) == 0
    assert rounds(BATCHING, 8, plan) == 1
    assert rounds(OPENVINO, 32, plan) == plan.fan_rounds
