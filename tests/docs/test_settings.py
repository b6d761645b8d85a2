"""Every setting has a row in docs/settings.md, in the words of its own description."""

from pathlib import Path

import pytest

from core.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")


def documented() -> dict[str, tuple[str, str]]:
    """Variable → (default, meaning)."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `HEADSTART_")]
    return {name.strip("`"): (default, meaning) for name, default, meaning in rows}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_each_setting_is_described_as_in_the_code(name: str) -> None:
    assert documented()[f"HEADSTART_{name.upper()}"][1] == Settings.model_fields[name].description


@pytest.mark.parametrize("name", Settings.model_fields)
def test_each_default_is_the_one_in_the_code(name: str) -> None:
    written = documented()[f"HEADSTART_{name.upper()}"][0]
    default = Settings.model_fields[name].default
    if Settings.model_fields[name].default_factory is not None:
        assert "folder" in written
    elif default in {None, ()}:
        assert written == "unset"
    elif isinstance(default, bool):
        assert written == str(default).lower()
    else:
        assert written == f"`{default}`"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    assert set(documented()) == {f"HEADSTART_{name.upper()}" for name in Settings.model_fields}
