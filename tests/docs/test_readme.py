"""The README's quickstart does what it shows, against a real server."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from core.settings import load_settings
from tests.e2e.home import Home

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def quickstart() -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert isinstance(block, str)
    return block


def test_the_quickstart_is_short() -> None:
    assert len(quickstart().splitlines()) <= 20


@pytest.mark.long
@pytest.mark.timeout(600)  # a minute or so where nothing else runs
def test_the_quickstart_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    home = Home(tmp_path, {"model_cache_dir": str(load_settings().model_cache_dir)})
    try:
        server = home.start()
        code = quickstart()
        for shown, real in (("YOUR-KEY", home.project_key), ("http://127.0.0.1:8080", server.address)):
            assert code.count(shown) == 1
            code = code.replace(shown, real)
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), {})
        assert server.terminate() == 0
    finally:
        home.close()
    answers = printed.getvalue().strip().splitlines()
    counts = [int(count) for count in re.findall(r"(\d+) tokens were cached", printed.getvalue())]
    assert len(answers) >= len(counts) == 2
    assert counts[0] == counts[1] > 400


def test_commands_that_the_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b", README)) <= targets
