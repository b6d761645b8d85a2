import subprocess
import sys
from pathlib import Path

import pytest

from billing.money import usd
from billing.prices import store
from models.session import Database
from tests.billing.rows import T0, add_cache, add_project, after, book, generate, write
from tests.cli.pages import Page
from tests.cli.running import done, refused

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        store(session, book(), T0)
        project_id = add_project(session, "busy")
        add_cache(session, project_id, "c", tokens=4096, end=after(100))
        write(session, project_id, "c", tokens=4096)
        generate(session, project_id, "hit", prompt=4110, cached=4096, cache_id="c", output=32)
        return project_id


class TestCommand:
    def test_writes_one_file(self, project: str, tmp_path: Path) -> None:
        path = tmp_path / "march.html"
        path.write_text("what was there before")
        asked = ("billing", "statement", "--project", "busy", "--month", "2026-03", "--output", str(path))
        cost = usd(409_600 + 4096 * 100 * 10**9 // (3600 * 10**6) + 40_960 + 1_400 + 12_800)
        assert done(*asked) == f"{path}: 2026-03 of busy, {cost} USD.\n"
        assert Page(path.read_text("utf-8")).rows("meters")[-1][3] == cost
        assert [each.name for each in tmp_path.iterdir() if each.suffix == ".html"] == ["march.html"]
        done(*asked, "--time-zone", "Europe/Vienna")
        assert "days of Europe/Vienna" in path.read_text("utf-8")

    def test_refuses_bad_input_by_name(self, project: str, tmp_path: Path) -> None:
        def told(of: str = "busy", month: str = "2026-03", path: str = "x.html", *more: str) -> str:
            where = str(tmp_path / path)
            return refused(
                "billing", "statement", "--project", of, "--month", month, "--output", where, *more
            )

        assert "no project nobody" in told("nobody")
        assert "month must be written as 2026-01" in told("busy", "March")
        assert "no time zone 'Mars'" in told("busy", "2026-03", "x.html", "--time-zone", "Mars")
        assert "No such file or directory" in told("busy", "2026-03", "missing/x.html")
        assert not (tmp_path / "x.html").exists()

    def test_names_the_remedy_where_nothing_can_draw(
        self, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        path = tmp_path / "x.html"
        message = refused(
            "billing", "statement", "--project", "busy", "--month", "2026-03", "--output", str(path)
        )
        assert 'pip install -c constraints.txt -e ".[statement]"' in message
        assert not path.exists()

    def test_no_other_command_needs_what_draws(self) -> None:
        program = "import sys, cli.main; print([name for name in ('matplotlib', 'PIL', 'numpy') if name in sys.modules])"
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert ran.stdout.strip() == "[]"
