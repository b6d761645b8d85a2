"""Every error code has its row in docs/errors.md, with the statuses and the reason that callers really get."""

from pathlib import Path

import pytest

from api.errors import TABLE
from core.errors import AppError, StartupError, error_classes

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
STARTUP_CODES = {each.code for each in error_classes(StartupError)}
REQUEST_CODES = {each.code for each in error_classes(AppError)} - STARTUP_CODES


def rows() -> dict[str, list[str]]:
    """Code → the other cells of its row."""
    cells = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize("code", sorted(REQUEST_CODES))
def test_a_request_error_is_documented_with_its_statuses(code: str) -> None:
    gemini, native = TABLE[code].gemini.http, TABLE[code].native.http
    assert rows()[code][0] == (f"{gemini}" if gemini == native else f"{gemini}, {native}")
    assert rows()[code][1] == f"`{TABLE[code].reason}`"
    assert len(rows()[code][2]) > 20


@pytest.mark.parametrize("code", sorted(STARTUP_CODES))
def test_a_start_up_error_is_documented(code: str) -> None:
    assert len(rows()[code][0]) > 20


def test_no_code_is_documented_that_does_not_exist() -> None:
    assert set(rows()) == REQUEST_CODES | STARTUP_CODES
