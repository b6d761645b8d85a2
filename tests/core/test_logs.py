import logging
from collections.abc import Iterator

import pytest

from core.logs import LineFormatter, configure


def line(message: str, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "api.app", "levelname": "INFO", "msg": message, "created": 0.5} | extra
    )
    return LineFormatter().format(record)


def test_a_record_is_one_line_of_keys_and_values() -> None:
    assert line("cache activated", cache_id="abc", token_count=7) == (
        'time=1970-01-01T00:00:00.500+00:00 level=info logger=api.app message="cache activated" cache_id=abc '
        "token_count=7"
    )


@pytest.mark.parametrize("forged", ["a\nlevel=error", "a\r\nb", "a\u2028b", "a\x85b", "a\x1b[2Kb"])
def test_nothing_in_a_record_can_start_another_line_or_move_the_cursor(forged: str) -> None:
    text = line("request", user_agent=forged)
    assert len(text.splitlines()) == 1
    assert text.isprintable()


def test_a_traceback_stays_on_the_line() -> None:
    with pytest.raises(ValueError, match="broken") as caught:
        int("broken")
    text = line("failed", exc_info=(caught.type, caught.value, caught.tb))
    assert len(text.splitlines()) == 1
    assert "ValueError: invalid literal" in text


@pytest.mark.parametrize(
    "text",
    [
        "GET /v1beta/models?key=top-secret HTTP/1.1",
        "GET /v1beta/models?alt=sse&key=top-secret&x=1",
        "GET /?access_token=top-secret",
        "client sent hs_topsecret0123456789",
        "cannot open postgresql://me:top-secret@host:5432/books",
        "cannot open postgresql://host/books?user=me&password=top-secret",
    ],
)
def test_keys_are_hidden_wherever_they_come_from(text: str) -> None:
    for written in (line(text), line("request", target=text)):
        assert "secret" not in written
        assert "[hidden]" in written


def test_what_is_no_key_is_shown() -> None:
    assert "monkey=7" in line("?monkey=7")
    assert "http://127.0.0.1:8080/v1/a@b" in line("http://127.0.0.1:8080/v1/a@b")
    assert "key_abcdefghijkl" in line("revoked", key_id="key_abcdefghijkl")


@pytest.fixture
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_root_logger")
def test_records_of_the_level_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure("warning")
    logging.getLogger("workers").info("unheard")
    logging.getLogger("workers").warning("heard")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "message=heard" in captured.err
    assert "unheard" not in captured.err
