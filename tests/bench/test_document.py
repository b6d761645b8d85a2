from typing import Any

from bench.document import PAGE, read_record, with_figures

RECORD: dict[str, Any] = {
    "hit_ttft_ratio_vs_openvino": 0.5,
    "openvino_cold_over_our_hit": None,
    "void": ["the peer is no peer"],
    "judged": False,
    "reservations": ["this CPU has no avx512_bf16"],
    "absolutes": {
        "ttft": {
            "headstart": {"1000": {"cold_s": 4.0, "hit_s": 0.05, "hits_s": [0.05]}},
            "openvino": {"1000": {"cold_s": 2.0, "hit_s": None, "hits_s": []}},
        }
    },
    "contestants": {"openvino": {"versions": {"openvino": "2026.4.1"}, "settings": {"cache_size": 4}}},
    "machine": {"cpu": "a CPU", "cores": 2, "flags": ["avx2"], "memory_gib": 24.0, "system": "Linux"},
    "load_before": [0.1, 0.2, 0.3],
}
PAGE_TEXT = "before\n<!-- figures: written by python -m bench document -->\nstale figures\n<!-- end of figures -->\nafter\n"


def test_the_figures_take_the_place_of_the_old_ones() -> None:
    page = with_figures(PAGE_TEXT, RECORD)
    assert page.startswith("before\n")
    assert page.endswith("<!-- end of figures -->\nafter\n")
    assert "stale" not in page
    assert "| `hit_ttft_ratio_vs_openvino` | 0.5 | ≤ 0.8 | 0.35 |" in page
    assert "| `openvino_cold_over_our_hit` | – | ≥ 35 | 100 |" in page
    assert "| Headstart, in process | 1000 | 4 | 0.05 |" in page
    assert "Reported, not judged: this CPU has no avx512_bf16." in page
    assert "VOID: the peer is no peer." in page
    assert "- OpenVINO GenAI, prefix caching: openvino 2026.4.1, cache_size 4" in page
    assert with_figures(page, RECORD) == page


def test_the_page_shows_the_recorded_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_figures(page, read_record()) == page, "run: .venv/bin/python -m bench document"
