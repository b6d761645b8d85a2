from datetime import UTC, datetime

import pytest

from api.dialects.gemini import page_tokens
from api.dialects.gemini.page_tokens import Position
from core.errors import InvalidArgument

KEY = bytes(range(32))
POSITION = Position((datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=UTC), "a" * 24), "b" * 24)


def test_a_token_leads_back_to_its_position() -> None:
    assert page_tokens.decode(KEY, "proj_1", page_tokens.encode(KEY, "proj_1", POSITION)) == POSITION


def test_a_token_survives_an_address_as_it_is() -> None:
    assert page_tokens.encode(KEY, "proj_1", POSITION).replace("-", "").replace("_", "").isalnum()


def test_another_project_another_key_and_any_change_are_refused() -> None:
    token = page_tokens.encode(KEY, "proj_1", POSITION)
    changed = ("B" if token[40] == "A" else "A").join([token[:40], token[41:]])
    for key, project, text in [
        (KEY, "proj_2", token),
        (bytes(32), "proj_1", token),
        (KEY, "proj_1", changed),
    ]:
        with pytest.raises(InvalidArgument):
            page_tokens.decode(key, project, text)


@pytest.mark.parametrize("text", ["x", "garbage", "é", "AAAA", "=", "A" * 100_000, "a b"])
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        page_tokens.decode(KEY, "proj_1", text)
    assert caught.value.field == "page_token"
