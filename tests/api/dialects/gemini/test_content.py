from typing import Any

import pytest

from api.dialects.gemini.content import Content, to_messages
from core.errors import InvalidArgument, NotSupported
from prompting.messages import Message


def messages(*contents: dict[str, Any], system: dict[str, Any] | None = None) -> tuple[Message, ...]:
    read = [Content.model_validate(content) for content in contents]
    return to_messages(None if system is None else Content.model_validate(system), read)


def of(role: str | None, *texts: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"text": text} for text in texts]}


def test_parts_of_a_content_are_one_text() -> None:
    assert messages(of("user", "a", "", " b")) == (Message("user", "a b"),)


def test_no_role_is_the_users_and_the_system_instructions_role_is_ignored() -> None:
    assert messages(of(None, "a"), system=of("user", "s")) == (Message("system", "s"), Message("user", "a"))


def test_pieces_of_a_streamed_answer_are_one_turn_again() -> None:
    turns = messages(
        of("user", "q"), of("model", "Hel"), of("model", "lo"), of("model", ""), of("user", "and?")
    )
    assert turns == (Message("user", "q"), Message("assistant", "Hello"), Message("user", "and?"))


def test_turns_of_the_user_stay_apart() -> None:
    assert messages(of("user", "a"), of("user", "b")) == (Message("user", "a"), Message("user", "b"))


def test_thoughts_are_accepted_and_not_repeated() -> None:
    content = {
        "role": "model",
        "parts": [{"text": "hm", "thought": True}, {"text": "a", "thoughtSignature": "YQ"}],
    }
    assert messages(content) == (Message("assistant", "a"),)


@pytest.mark.parametrize(
    "mime_type", ["text/plain", "TEXT/HTML", "text/csv; charset=utf-8", "application/json"]
)
def test_text_files_are_decoded(mime_type: str) -> None:
    content = {"parts": [{"inlineData": {"mimeType": mime_type, "data": "w6k="}}]}
    assert messages(content) == (Message("user", "é"),)


@pytest.mark.trap("T17")
@pytest.mark.parametrize("mime_type", ["image/png", "application/pdf", "audio/wav", "x"])
def test_other_files_are_not_supported(mime_type: str) -> None:
    with pytest.raises(NotSupported) as caught:
        messages(
            of("user", "a"), {"parts": [{"text": "b"}, {"inlineData": {"mimeType": mime_type, "data": ""}}]}
        )
    assert caught.value.field == "contents[1].parts[1].inline_data.mime_type"


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"role": "assistant", "parts": [{"text": "a"}]}, "contents[0].role"),
        ({"role": "user"}, "contents[0].parts"),
        ({"role": "user", "parts": []}, "contents[0].parts"),
        ({"parts": [{"text": "a"}, {}]}, "contents[0].parts[1]"),
        ({"parts": [{"thought": True}]}, "contents[0].parts[0]"),
        ({"parts": [{"inlineData": {"data": "YQ"}}]}, "contents[0].parts[0].inline_data.mime_type"),
        (
            {"parts": [{"inlineData": {"mimeType": "text/plain", "data": "/w=="}}]},
            "contents[0].parts[0].inline_data.data",
        ),
        (
            {"parts": [{"inlineData": {"mimeType": "text/plain", "data": "AA=="}}]},
            "contents[0].parts[0].inline_data.data",
        ),
    ],
)
def test_what_makes_no_text_is_named(content: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        messages(content)
    assert caught.value.field == field
