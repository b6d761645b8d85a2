"""A start that is refused; what a person reads when the server is ready: the address as it is, the keys once, a snippet in Python."""

from pathlib import Path
from typing import Any, cast

import pytest

from cli.embedded import Embedded, embedded as start
from cli.first_start import FirstKeys
from cli.serve import _announce
from core.errors import LedgerBroken
from core.settings import load_settings
from prompting.served_model import ServedModel
from workers.engine.loading.progress import silent

ADDRESS = "http://[fd00::1]:8080"  # looks like rich's markup
METRICS_ADDRESS = "http://[::1]:9464/metrics"


def embedded(first_keys: FirstKeys | None) -> Embedded:
    """A server of which only what is announced exists."""
    absent = cast(Any, None)
    model = ServedModel(
        name="tiny",
        aliases=(),
        display_name="Tiny",
        description="",
        context_tokens=2,
        input_token_limit=1,
        output_token_limit=1,
        min_cache_tokens=1,
        fingerprint="aa:bb",
        format=absent,
    )
    return Embedded(
        absent, absent, absent, absent, model, absent, has_engine=lambda: True, first_keys=first_keys
    )


def test_a_server_that_would_not_charge_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded, served or recovered."""
    monkeypatch.setattr("billing.usage.post", lambda *_, **__: 0)
    with pytest.raises(LedgerBroken), start(load_settings(data_dir=tmp_path / "data"), silent):
        raise AssertionError


@pytest.mark.parametrize("json_ready", [True, False])
def test_the_first_start_shows_both_keys(capsys: pytest.CaptureFixture[str], *, json_ready: bool) -> None:
    _announce(
        ADDRESS, METRICS_ADDRESS, embedded(FirstKeys("hs_project", "hs_operator")), json_ready=json_ready
    )
    shown = capsys.readouterr().out
    for part in ("hs_project", "hs_operator", ADDRESS, METRICS_ADDRESS):
        assert part in shown


def test_a_later_start_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    _announce(ADDRESS, METRICS_ADDRESS, embedded(None), json_ready=False)
    shown = capsys.readouterr().out
    assert f"serves tiny at {ADDRESS}" in shown
    assert "hs_" not in shown
    assert "Two keys were made" not in shown


def test_the_snippet_is_python_for_this_server(capsys: pytest.CaptureFixture[str]) -> None:
    _announce(ADDRESS, METRICS_ADDRESS, embedded(FirstKeys("hs_project", "hs_operator")), json_ready=False)
    snippet = capsys.readouterr().out.partition("(pip install google-genai):\n")[2]
    compile(snippet, "snippet", "exec")
    for part in ('api_key="hs_project"', f'"base_url": "{ADDRESS}"', 'model="tiny"'):
        assert part in snippet
