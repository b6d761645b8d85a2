"""Links between pages lead somewhere, and every decision record is in the list and has all headings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
HEADINGS = ["## Context", "## Decision", "## Consequences", "## Alternatives", "## Enforced by"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target and "NNNN" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("record", DECISIONS, ids=lambda record: record.name)
def test_a_decision_record_has_every_heading_and_is_listed(record: Path) -> None:
    lines = record.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("## ")] == HEADINGS
    assert lines[0].startswith(f"# {record.name[:4]}: ")
    assert f"]({record.name})" in (record.parent / "README.md").read_text(encoding="utf-8")
