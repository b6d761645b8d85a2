import time

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from prompting.format import PromptFormat

KINDS = ["built-in", "llama-2", "llama-3", "qwen"]


def stream(format_: PromptFormat, ids: list[int]) -> list[str]:
    detokenizer = format_.detokenizer()
    return [*(detokenizer.push(each) for each in ids), detokenizer.finish()]


def decode(format_: PromptFormat, ids: list[int]) -> str:
    return str(format_._tokenizer.backend.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
@example(text="  two spaces first")
@example(text="👍🏽 漢字\u200d e\u0301")
@example(text="a literal \ufffd stays")
def test_a_text_comes_back_piece_by_piece(kind: str, text: str, formats: dict[str, PromptFormat]) -> None:
    format_ = formats[kind]
    ids = format_.encode(text)
    assert "".join(stream(format_, ids)) == decode(format_, ids)


@pytest.mark.parametrize("kind", ["built-in", "llama-3", "qwen"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_ids_decode_as_all_at_once(
    kind: str, data: st.DataObject, formats: dict[str, PromptFormat]
) -> None:
    format_ = formats[kind]
    ids = data.draw(st.lists(st.integers(0, format_.vocabulary_size - 1), max_size=40))
    assert "".join(stream(format_, ids)) == decode(format_, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_comes_only_when_all_its_bytes_are_there(
    kind: str, formats: dict[str, PromptFormat]
) -> None:
    format_ = formats[kind]
    ids = format_._tokenizer.encode_rest("🦉")  # no vocabulary here has an owl
    assert len(ids) > 2
    nothing = [""] * (len(ids) - 1)
    assert stream(format_, ids) == [*nothing, "🦉", ""]
    assert stream(format_, ids[:-1]) == [*nothing, "\ufffd"]


def test_special_tokens_and_unknown_ids_have_no_text(built_in: PromptFormat) -> None:
    assert stream(built_in, [0, 1, 2, 10**6]) == [""] * 5


def test_added_tokens_that_are_not_special_have_text(formats: dict[str, PromptFormat]) -> None:
    format_ = formats["qwen"]
    assert "".join(stream(format_, format_.encode("<think>a b</think>"))) == "<think>a b</think>"


def test_a_space_that_the_tokenizer_put_first_is_taken_away_once(formats: dict[str, PromptFormat]) -> None:
    format_ = formats["llama-2"]
    assert "".join(stream(format_, format_.encode("hello hello"))) == "hello hello"


def test_time_is_linear_even_where_nothing_is_a_character(built_in: PromptFormat) -> None:
    broken = next(each for each in range(3, 300) if stream(built_in, [each]) == ["", "\ufffd"])
    detokenizer = built_in.detokenizer()
    start = time.perf_counter()
    for _ in range(200_000):
        detokenizer.push(broken)
    assert time.perf_counter() - start < 5
