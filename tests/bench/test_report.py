import io
import json

from rich.console import Console

from bench.contestant import Description
from bench.machine import Machine, this_machine
from bench.report import Circumstances, Outcome, as_json, claims, overview
from bench.roster import OPENVINO, OURS

JUDGING = Machine("a CPU", 2, ("avx2", "avx512_bf16"), 24.0, "Linux")
REPORTING = Machine("another CPU", 2, ("avx2",), 24.0, "Linux")
TTFT = Outcome(
    "ttft",
    {"hit_ttft_ratio_vs_openvino": 0.3333333, "openvino_cold_over_our_hit": 20.0, "token_ms": None},
    {OURS: {"7900": {"hit_s": 0.05, "hits_s": [0.05]}}, OPENVINO: {"7900": {"hit_s": 0.1, "hits_s": [0.1]}}},
    [],
)
FANOUT = Outcome("fanout", {"throughput_ratio_vs_openvino": 3.5}, {}, ["the peer is no peer"])
DESCRIPTIONS = {OURS: Description({"torch": "2.13.0"}, {"threads": 2})}


def circumstances(machine: Machine = JUDGING, *, load: float = 0.1, is_quick: bool = False) -> Circumstances:
    return Circumstances(machine, (load, load, load), is_quick, ())


def test_one_object_with_the_claims_on_top() -> None:
    line = as_json("all", [TTFT, FANOUT], DESCRIPTIONS, circumstances())
    assert json.loads(json.dumps(line)) == line
    assert line["benchmark"] == "all"
    assert line["hit_ttft_ratio_vs_openvino"] == 0.3333
    assert line["token_ms"] is None
    assert line["throughput_ratio_vs_openvino"] == 3.5
    assert line["void"] == ["the peer is no peer"]
    assert line["absolutes"]["ttft"][OURS]["7900"]["hits_s"] == [0.05]
    assert line["contestants"][OURS]["settings"] == {"threads": 2}
    assert line["machine"]["flags"] == ["avx2", "avx512_bf16"]


def test_judged_where_nothing_speaks_against_it() -> None:
    line = as_json("ttft", [TTFT], DESCRIPTIONS, circumstances())
    assert line["judged"] is True
    assert line["verdicts"] == {
        "hit_ttft_ratio_vs_openvino": "reaches the aim",
        "openvino_cold_over_our_hit": "misses the must",
    }


def test_reported_only_on_a_cpu_without_bf16_a_busy_machine_or_a_quick_run() -> None:
    for around in (circumstances(REPORTING), circumstances(load=2.0), circumstances(is_quick=True)):
        line = as_json("ttft", [TTFT], DESCRIPTIONS, around)
        assert line["judged"] is False
        assert len(line["reservations"]) == 1
        assert line["verdicts"] == {}


def test_changed_settings_are_not_judged() -> None:
    around = Circumstances(JUDGING, (0.0, 0.0, 0.0), is_quick=False, changed=("dtype",))
    assert as_json("ttft", [TTFT], DESCRIPTIONS, around)["reservations"] == [
        "settings are not the defaults of headstart serve: dtype"
    ]


def test_tables_show_every_contestant_and_every_claim() -> None:
    out = io.StringIO()
    console = Console(file=out, width=140)
    console.print(overview(TTFT))
    console.print(claims(TTFT, circumstances()))
    text = out.getvalue()
    for words in ("Headstart, in process", "OpenVINO GenAI", "hit_ttft_ratio_vs_openvino", "≤ 0.8", "≥ 35"):
        assert words in text
    assert "misses the must" in text


def test_this_machine_is_named() -> None:
    machine = this_machine()
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.memory_gib > 0
