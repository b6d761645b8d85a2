import json
import time

import pytest

from api import json_text
from core.errors import InvalidArgument
from core.settings import load_settings

DEPTH = 64


def refused(body: bytes | str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        json_text.load(body.encode() if isinstance(body, str) else body, DEPTH)
    return caught.value.message


class TestLoad:
    def test_reads_what_is_json(self) -> None:
        body = '{"a": [1, 2.5, null, true, {"b": "é\\n\\u00e9\\ud83d\\ude00"}]}'
        assert json_text.load(body.encode(), DEPTH) == {"a": [1, 2.5, None, True, {"b": "é\né😀"}]}

    @pytest.mark.parametrize("body", [b"", b" \n"])
    def test_an_empty_body_is_an_empty_object(self, body: bytes) -> None:
        assert json_text.load(body, DEPTH) == {}

    @pytest.mark.parametrize(
        "body", ["{", '{"a"}', "{'a': 1}", '{"a": 01}', '{"a": "\n"}', "nope", "\ufeff{}", "{}x"]
    )
    def test_malformed_text_is_told_with_its_place(self, body: str) -> None:
        assert refused(body).startswith("Invalid JSON payload received. ")

    def test_the_deepest_body_that_can_be_allowed_is_read_checked_and_written(self) -> None:
        deepest = load_settings(max_json_depth=256).max_json_depth
        body = b'{"a":' * deepest + b'"\\ud83d\\ude00"' + b"}" * deepest
        assert json_text.dump(json_text.load(body, deepest)) == body

    @pytest.mark.parametrize("body", ["[]", "1", '"a"', "null"])
    def test_a_body_that_is_no_object_is_refused(self, body: str) -> None:
        assert "must be an object" in refused(body)

    def test_bytes_that_are_no_utf8_are_refused(self) -> None:
        assert "Byte 6 is no UTF-8" in refused(b'{"a":"\xff"}')

    @pytest.mark.parametrize(
        "number", ["NaN", "Infinity", "-Infinity", "1e400", "1" * 30, "-" + "9" * 5000, "9" * 20]
    )
    def test_numbers_without_bounds_are_refused(self, number: str) -> None:
        assert "number" in refused(f'{{"a": {number}}}')

    def test_the_largest_integers_of_64_bits_pass(self) -> None:
        assert (
            json_text.load(b'{"a": 9223372036854775807, "b": -9223372036854775807}', DEPTH)["a"] == 2**63 - 1
        )

    def test_a_name_that_appears_twice_is_refused_at_any_level(self) -> None:
        assert '"b" appears twice' in refused('{"a": {"b": 1, "c": 2, "b": 1}}')

    def test_an_object_of_too_many_names_is_refused(self) -> None:
        assert "more than 1000 names" in refused(json.dumps({str(index): 1 for index in range(1001)}))

    @pytest.mark.parametrize("text", ["\\u0000", "\\ud800", "\\uDFFF", "\\udc00\\ud800", "x\\uD83D"])
    def test_text_that_cannot_be_stored_is_refused_with_its_path(self, text: str) -> None:
        assert "'a.b[1]'" in refused(f'{{"a": {{"b": ["", "{text}"]}}}}')

    def test_such_text_is_refused_in_a_name_too(self) -> None:
        assert "NUL" in refused('{"a": {"\\u0000": 1}}')

    def test_an_escaped_backslash_before_a_u_is_text(self) -> None:
        assert json_text.load(b'{"a": "\\\\u0000"}', DEPTH) == {"a": "\\u0000"}


class TestDepth:
    def test_64_levels_pass_and_65_do_not(self) -> None:
        def nested(levels: int) -> bytes:
            return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

        json_text.load(nested(64), DEPTH)
        assert "64 levels" in refused(nested(65))

    @pytest.mark.parametrize("text", ["[" * 100, '\\"' + "[" * 100, '\\\\\\"{{' + "{" * 100, "{\\\\"])
    def test_brackets_inside_strings_do_not_count(self, text: str) -> None:
        json_text.load(f'{{"a": "{text}"}}'.encode(), DEPTH)

    @pytest.mark.parametrize(
        "start", ['{"a": "\\\\", "b":', '{"a": "\\"", "b":', '{"":', '{"a": "x\\\\\\"", "b":']
    )
    def test_no_string_hides_the_brackets_after_it(self, start: str) -> None:
        assert "64 levels" in refused(start + "[" * 100_000)

    def test_a_wide_body_passes_across_chunks(self) -> None:
        json_text.load(b'{"a":[' + b",".join([b"[]"] * 100_000) + b"]}", DEPTH)

    @pytest.mark.parametrize(
        "body", [b"[" * 4_000_000, b'"\\' * 2_000_000, b'"\\"' * 1_000_000, b'""' * 2_000_000]
    )
    def test_hostile_megabytes_take_no_time(self, body: bytes) -> None:
        started = time.monotonic()
        refused(body)
        assert time.monotonic() - started < 3  # linear: well below a second; quadratic: hours


class TestDump:
    def test_writes_one_ascii_line(self) -> None:
        text = "a\u2028b\u2029c\u0085d\x00\n\x1f😀é"
        written = json_text.dump({"text": text})
        assert written.isascii()
        assert b"\n" not in written
        assert json.loads(written) == {"text": text}

    def test_never_writes_what_is_no_json(self) -> None:
        with pytest.raises(ValueError, match="JSON compliant"):
            json_text.dump(float("nan"))
