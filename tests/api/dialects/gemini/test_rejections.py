import re
from typing import Any

import pytest

from api.dialects.gemini.rejections import parse, path_of, snake
from api.dialects.gemini.requests import CachedContent, CountTokensRequest, GenerateContentRequest
from core.errors import InvalidArgument, NotSupported


def invalid(
    body: dict[str, Any], kind: type[Any] = GenerateContentRequest, root: str = ""
) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        parse(kind, body, root)
    return caught.value


class TestSpelling:
    def test_camel_case_and_snake_case_are_read_at_every_level(self) -> None:
        camel = {
            "systemInstruction": {"parts": [{"inlineData": {"mimeType": "text/plain", "data": "YQ=="}}]},
            "generationConfig": {"maxOutputTokens": 3, "topK": 2, "thinkingConfig": {"thinkingBudget": 0}},
            "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
            "cachedContent": "cachedContents/x",
        }
        snaked = {
            "system_instruction": {"parts": [{"inline_data": {"mime_type": "text/plain", "data": "YQ=="}}]},
            "generation_config": {
                "max_output_tokens": 3,
                "top_k": 2,
                "thinking_config": {"thinking_budget": 0},
            },
            "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
            "cached_content": "cachedContents/x",
        }
        assert parse(GenerateContentRequest, camel) == parse(GenerateContentRequest, snaked)

    def test_null_is_absent(self) -> None:
        body = {
            "generationConfig": None,
            "tools": None,
            "contents": [{"role": None, "parts": [{"text": "a"}]}],
        }
        assert parse(GenerateContentRequest, body).generation_config is None

    def test_a_single_content_or_part_may_stand_for_a_list(self) -> None:
        listed = {"contents": [{"parts": [{"text": "a"}]}]}
        assert parse(GenerateContentRequest, {"contents": {"parts": {"text": "a"}}}) == parse(
            GenerateContentRequest, listed
        )

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("topK", "top_k"),
            ("mimeType", "mime_type"),
            ("top_k", "top_k"),
            ("responseJsonSchema", "response_json_schema"),
        ],
    )
    def test_paths_are_in_snake_case(self, name: str, expected: str) -> None:
        assert snake(name) == expected

    def test_paths_have_indices(self) -> None:
        assert (
            path_of(("contents", 0, "parts", 2, "inlineData"), "root")
            == "root.contents[0].parts[2].inline_data"
        )


class TestUnknownNames:
    def test_at_the_root(self) -> None:
        error = invalid({"foo": 1})
        assert error.message == 'Invalid JSON payload received. Unknown name "foo": Cannot find field.'
        assert error.violations == (("foo", error.message),)

    def test_deep_inside_with_the_path(self) -> None:
        error = invalid({"contents": [{"parts": [{"text": "a", "fooBar": 1}]}]})
        assert error.message == (
            "Invalid JSON payload received. Unknown name \"fooBar\" at 'contents[0].parts[0]': Cannot find field."
        )
        assert error.field == "contents[0].parts[0].fooBar"

    def test_below_a_root_of_its_own(self) -> None:
        error = invalid({"maxTokens": 1}, CachedContent, "cached_content")
        assert "Unknown name \"maxTokens\" at 'cached_content': Cannot find field." in error.message

    def test_every_one_is_named(self) -> None:
        error = invalid({"foo": 1, "generationConfig": {"bar": 2}})
        assert {field for field, _ in error.violations} == {"foo", "generation_config.bar"}

    def test_both_spellings_of_one_name_are_refused(self) -> None:
        assert "cached_content" in invalid({"cachedContent": "a", "cached_content": "b"}).message

    def test_thousands_cost_no_thousands_of_answers(self) -> None:
        assert len(invalid({f"x{index}": 1 for index in range(999)}).violations) == 20
        many = {"contents": [1] * 100_000}
        assert len(invalid(many).violations) == 1


class TestWrongValues:
    @pytest.mark.parametrize(
        ("config", "path", "kind"),
        [
            ({"maxOutputTokens": "5"}, "max_output_tokens", "TYPE_INT32"),
            ({"maxOutputTokens": 5.5}, "max_output_tokens", "TYPE_INT32"),
            ({"maxOutputTokens": True}, "max_output_tokens", "TYPE_INT32"),
            ({"topK": 3.5}, "top_k", "TYPE_INT32"),
            ({"temperature": "0.5"}, "temperature", "TYPE_FLOAT"),
            ({"temperature": True}, "temperature", "TYPE_FLOAT"),
            ({"stopSequences": "a"}, "stop_sequences", "a list"),
            ({"stopSequences": [1]}, "stop_sequences[0]", "TYPE_STRING"),
            ({"thinkingConfig": 3}, "thinking_config", "an object"),
            ({"audioTimestamp": "yes"}, "audio_timestamp", "TYPE_BOOL"),
        ],
    )
    def test_types_are_strict(self, config: dict[str, Any], path: str, kind: str) -> None:
        error = invalid({"generationConfig": config})
        assert error.field == f"generation_config.{path}"
        assert error.message.startswith(f"Invalid value at 'generation_config.{path}' ({kind})")

    @pytest.mark.parametrize(
        ("config", "path"),
        [
            ({"temperature": 2.1}, "temperature"),
            ({"temperature": -0.1}, "temperature"),
            ({"topP": 0}, "top_p"),
            ({"topP": 1.01}, "top_p"),
            ({"topK": 0}, "top_k"),
            ({"maxOutputTokens": 0}, "max_output_tokens"),
            ({"seed": 2**31}, "seed"),
            ({"stopSequences": ["a", "b", "c", "d", "e", "f"]}, "stop_sequences"),
            ({"stopSequences": [""]}, "stop_sequences[0]"),
        ],
    )
    def test_ranges_hold(self, config: dict[str, Any], path: str) -> None:
        error = invalid({"generationConfig": config})
        assert error.message.startswith(f"Invalid value at 'generation_config.{path}'")

    def test_integral_floats_are_integers_and_integers_are_floats(self) -> None:
        body = {"generationConfig": {"topK": 3.0, "temperature": 1, "seed": -7.0}}
        config = parse(GenerateContentRequest, body).generation_config
        assert config is not None
        assert (config.top_k, config.temperature, config.seed) == (3, 1.0, -7)

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"contents": "hello"}, "contents"),
            ({"contents": ["hello"]}, "contents[0]"),
            ({"contents": [{"parts": [{"text": 5}]}]}, "contents[0].parts[0].text"),
            (
                {"contents": [{"parts": [{"inlineData": {"mimeType": "text/plain", "data": "!"}}]}]},
                "contents[0].parts[0].inline_data.data",
            ),
            (
                {"contents": [{"parts": [{"inlineData": {"mimeType": "text/plain", "data": "a"}}]}]},
                "contents[0].parts[0].inline_data.data",
            ),
            ({"contents": [{"role": 1}]}, "contents[0].role"),
            ({"systemInstruction": "be nice"}, "system_instruction"),
            ({"safetySettings": [{"category": "not an enum"}]}, "safety_settings[0].category"),
            ({"labels": {"a": 1}}, "labels.a"),
            ({"cachedContent": 5}, "cached_content"),
        ],
    )
    def test_the_path_of_what_is_wrong_is_named(self, body: dict[str, Any], path: str) -> None:
        error = invalid(body)
        assert error.field == path
        assert f"'{path}'" in error.message

    def test_a_long_value_is_not_sent_back_whole(self) -> None:
        assert len(invalid({"cachedContent": ["x" * 10_000]}).message) < 300
        assert len(invalid({"generationConfig": {"temperature": "x" * 10_000}}).message) < 300

    def test_a_display_name_has_at_most_128_code_points(self) -> None:
        assert parse(CachedContent, {"displayName": "😀" * 128}).display_name == "😀" * 128
        assert invalid({"displayName": "x" * 129}, CachedContent).field == "display_name"


class TestBytes:
    @pytest.mark.parametrize("data", ["_-8=", "_-8", "/+8=", "/+8"])
    def test_both_alphabets_with_and_without_padding(self, data: str) -> None:
        body = {"contents": [{"parts": [{"inlineData": {"mimeType": "text/plain", "data": data}}]}]}
        contents = parse(GenerateContentRequest, body).contents
        assert contents is not None
        assert contents[0].parts is not None
        assert contents[0].parts[0].inline_data is not None
        assert contents[0].parts[0].inline_data.data == b"\xff\xef"


class TestNotBuilt:
    @pytest.mark.parametrize(
        ("config", "path"),
        [
            ({"responseMimeType": "application/json"}, "response_mime_type"),
            ({"responseSchema": {"type": "STRING"}}, "response_schema"),
            ({"response_json_schema": {"type": "string"}}, "response_json_schema"),
            ({"responseModalities": ["TEXT", "AUDIO"]}, "response_modalities[1]"),
            ({"thinkingConfig": {"thinkingBudget": 100}}, "thinking_config.thinking_budget"),
            ({"thinkingConfig": {"thinkingLevel": "HIGH"}}, "thinking_config.thinking_level"),
            ({"thinkingConfig": {"includeThoughts": True}}, "thinking_config.include_thoughts"),
            ({"speechConfig": {}}, "speech_config"),
        ],
    )
    def test_a_field_that_is_not_built_is_named(self, config: dict[str, Any], path: str) -> None:
        with pytest.raises(NotSupported, match=re.escape(f"'generation_config.{path}'")) as caught:
            parse(GenerateContentRequest, {"generationConfig": config})
        assert caught.value.field == f"generation_config.{path}"

    @pytest.mark.parametrize(
        "config",
        [
            {"candidateCount": 1.0, "presencePenalty": 0, "frequencyPenalty": 0.0, "responseLogprobs": False},
            {"responseMimeType": "text/plain", "responseModalities": ["TEXT"]},
            {"thinkingConfig": {"thinkingBudget": 0, "includeThoughts": False}},
            {"mediaResolution": "MEDIA_RESOLUTION_LOW", "audioTimestamp": True},
            {},
        ],
    )
    def test_words_for_what_is_done_anyway_are_accepted(self, config: dict[str, Any]) -> None:
        parse(GenerateContentRequest, {"generationConfig": config})

    def test_the_remedy_is_named(self) -> None:
        for config, remedy in (
            ({"speechConfig": {}}, "leave it out"),
            ({"responseMimeType": "application/json"}, "only text/plain is supported"),
        ):
            with pytest.raises(NotSupported, match=f"not supported by this server: {remedy}\\.$"):
                parse(GenerateContentRequest, {"generationConfig": config})

    def test_what_is_wrong_comes_before_what_is_not_built(self) -> None:
        assert "foo" in invalid({"foo": 1, "generationConfig": {"speechConfig": {}}}).message

    @pytest.mark.trap("T17")
    @pytest.mark.parametrize("part", [{"fileData": {"fileUri": "x"}}, {"functionCall": {"name": "f"}}])
    def test_parts_of_other_kinds_are_named_with_their_index(self, part: dict[str, Any]) -> None:
        with pytest.raises(NotSupported) as caught:
            parse(CountTokensRequest, {"contents": [{"parts": [{"text": "a"}, part]}]})
        assert str(caught.value.field).startswith("contents[0].parts[1].f")
