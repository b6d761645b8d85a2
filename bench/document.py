"""Writes the figures of a recorded run into docs/performance.md, between two marks: nobody copies numbers by hand."""

import json
from pathlib import Path
from typing import Any

from bench.figures import TARGETS
from bench.report import described, shown
from bench.roster import ROSTER

_DOCS = Path(__file__).parents[1] / "docs"
RECORD = _DOCS / "performance.json"
PAGE = _DOCS / "performance.md"
_START, _END = "<!-- figures: written by python -m bench document -->\n", "<!-- end of figures -->\n"


def write_page() -> None:
    PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), read_record()), encoding="utf-8")


def read_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def with_figures(page: str, record: dict[str, Any]) -> str:
    """The page with its figures replaced by those of the record."""
    before, _, rest = page.partition(_START)
    _, _, after = rest.partition(_END)
    return f"{before}{_START}\n{figures(record)}\n{_END}{after}"


def figures(record: dict[str, Any]) -> str:
    return "\n".join(
        [*_circumstances(record), "", *_claims(record), "", *_absolutes(record), "", *_settings(record)]
    )


def _circumstances(record: dict[str, Any]) -> list[str]:
    machine = record["machine"]
    flags = ", ".join(machine["flags"])
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB ({flags}), {machine['system']}"
    load = f"Load before the run: {record['load_before'][0]:.2f}."
    judged = "Judged." if record["judged"] else f"Reported, not judged: {'; '.join(record['reservations'])}."
    return [f"Machine: {where}. {load} {judged}", *(f"VOID: {reason}." for reason in record["void"])]


def _claims(record: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{name}` | {shown(record[name])} | {target.sign} {target.must:g} | {shown(target.aim)} |"
        for name, target in TARGETS.items()
        if name in record
    ]
    return ["| figure | seen | must | aim |", "|---|---|---|---|", *rows]


def _absolutes(record: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for benchmark, by_contestant in record["absolutes"].items():
        sizes = [size for by_size in by_contestant.values() for size in by_size.values()]
        names = list(
            dict.fromkeys(
                name for size in sizes for name, value in size.items() if not isinstance(value, list)
            )
        )
        lines += [
            f"`{benchmark}`:",
            "",
            f"| contestant | size | {' | '.join(names)} |",
            "|---" * (len(names) + 2) + "|",
        ]
        for contestant, by_size in by_contestant.items():
            for size, values in by_size.items():
                cells = " | ".join(shown(values.get(name)) for name in names)
                lines.append(f"| {ROSTER[contestant].title} | {size} | {cells} |")
        lines.append("")
    return lines[:-1]


def _settings(record: dict[str, Any]) -> list[str]:
    return [
        f"- {described(name, each['versions'], each['settings'])}"
        for name, each in record["contestants"].items()
    ]
