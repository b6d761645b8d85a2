from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from annotated_types import Le

from core.errors import SettingsInvalid
from core.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"HEADSTART_{name.upper()}", raising=False)


def test_the_defaults_are_valid_and_those_of_the_design() -> None:
    settings = load_settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.min_cache_tokens == 64
    assert (settings.default_ttl_seconds, settings.max_ttl_seconds) == (3600, 2_592_000)
    assert (settings.max_body_bytes, settings.max_json_depth) == (33_554_432, 64)
    assert settings.max_caches_per_project == 1000
    assert settings.data_dir.name == "headstart"


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADSTART_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HEADSTART_PORT", "9000")
    monkeypatch.setenv("HEADSTART_MODEL_ALIASES", "gemini-2.5-flash, org/served")
    settings = load_settings()
    assert (settings.data_dir, settings.port) == (tmp_path, 9000)
    assert settings.model_aliases == ("gemini-2.5-flash", "org/served")


def test_what_is_passed_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_PORT", "9000")
    assert load_settings(port=0).port == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "65536"),
        ("DTYPE", "int4"),
        ("THREADS", "0"),
        ("MIN_CACHE_TOKENS", "0"),
        ("MODEL", ""),
        ("MODEL_NAME", "models/x"),
        ("MODEL_ALIASES", "models/gemini"),
        ("SWEEP_INTERVAL_SECONDS", "61"),
        ("LOG_LEVEL", "loud"),
        ("HOST", ""),
        ("DATA_DIR", ""),
        ("MODEL_CACHE_DIR", ""),
        ("PRICE_BOOK", ""),
        ("DATA_DIR", "~no-such-user/x"),
        ("MODEL_CACHE_DIR", "~no-such-user/x"),
        ("PRICE_BOOK", "~no-such-user/x"),
        ("MODEL", "~no-such-user/x"),
        ("THREADS", "99999999999"),
        ("MAX_TTL_SECONDS", "1000000000000000"),
        ("MAX_JSON_DEPTH", "257"),
    ],
)
def test_a_bad_value_is_refused_and_its_variable_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"HEADSTART_{name}", value)
    with pytest.raises(SettingsInvalid) as caught:
        load_settings()
    assert caught.value.message.startswith(f"HEADSTART_{name}: ")
    assert caught.value.field == name.lower()


def test_a_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DATA_DIR", "MODEL_CACHE_DIR", "PRICE_BOOK"):
        monkeypatch.setenv(f"HEADSTART_{name}", "~/x")
    settings = load_settings()
    assert {settings.data_dir, settings.model_cache_dir, settings.price_book} == {tmp_path / "x"}


def test_the_longest_life_that_can_be_set_ends_at_an_instant() -> None:
    (at_most,) = (
        each.le for each in Settings.model_fields["max_ttl_seconds"].metadata if isinstance(each, Le)
    )
    longest = load_settings(max_ttl_seconds=at_most).max_ttl_seconds
    assert (datetime.now(UTC) + timedelta(seconds=longest)).year < 9999


def test_every_bad_value_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_PORT", "http")
    monkeypatch.setenv("HEADSTART_THREADS", "0")
    with pytest.raises(SettingsInvalid, match=r"(?s)HEADSTART_PORT.*HEADSTART_THREADS"):
        load_settings()


def test_a_default_life_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(SettingsInvalid, match="default_ttl_seconds is more than max_ttl_seconds"):
        load_settings(default_ttl_seconds=11, max_ttl_seconds=10)


def test_rebuilding_and_retiring_exclude_each_other() -> None:
    with pytest.raises(SettingsInvalid, match="exclude each other"):
        load_settings(rebuild_caches=True, retire_caches=True)


def test_settings_do_not_change_after_they_were_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_what_it_is_for(name: str) -> None:
    assert len(Settings.model_fields[name].description or "") > 20
