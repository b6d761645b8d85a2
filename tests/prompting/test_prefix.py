"""A prefix and its suffix give the ids of the whole, or are refused."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tokenizers import AddedToken

from core.errors import CachePrefixMismatch, InvalidArgument, TemplateUnsupported
from prompting.format import PromptFormat
from prompting.messages import Message
from tests.prompting.folders import byte_level, write_folder
from tests.prompting.test_oracle import FREE_KINDS, LOOKS_LIKE_CONTROL, PLAIN, conversations

SYSTEM, USER, MODEL = Message("system", "Be brief."), Message("user", "Who?"), Message("assistant", "I.")

SOUNDS_GONE = re.compile("cached? content", re.IGNORECASE)

turns = st.sampled_from(["user", "assistant"])
followers = st.lists(
    st.builds(Message, turns, st.text(max_size=30) | st.sampled_from([*PLAIN, *LOOKS_LIKE_CONTROL])),
    min_size=1,
    max_size=4,
)


def make_format(
    folder: Path, template: str, *, added: tuple[str | AddedToken, ...] = (), special: tuple[str, ...] = ()
) -> PromptFormat:
    return PromptFormat.load(write_folder(folder, byte_level(special, added), template))


@pytest.mark.trap("T39")
@pytest.mark.parametrize("kind", FREE_KINDS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cached=conversations, new=followers)
def test_prefix_and_suffix_are_the_whole_prompt(
    kind: str, cached: list[Message], new: list[Message], formats: dict[str, PromptFormat]
) -> None:
    format_ = formats[kind]
    prefix = format_.prefix(cached)
    suffix = format_.suffix(prefix.text, cached, new)
    assert prefix.token_ids + suffix == format_.prompt([*cached, *new]).token_ids
    assert len(prefix.token_ids) == format_.count(cached)
    assert suffix


@pytest.mark.trap("T39")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.text(max_size=30), second=st.text(max_size=30), third=st.text(max_size=30))
def test_prefix_and_suffix_are_the_whole_prompt_with_a_sentencepiece_tokenizer(
    first: str, second: str, third: str, formats: dict[str, PromptFormat]
) -> None:
    cached = [Message("user", first), Message("assistant", second)]
    format_ = formats["llama-2"]
    prefix = format_.prefix(cached)
    new = [Message("user", third)]
    suffix = format_.suffix(prefix.text, cached, new)
    assert prefix.token_ids + suffix == format_.prompt([*cached, *new]).token_ids


class TestBuiltIn:
    def test_a_suffix_has_no_second_system_turn(self, built_in: PromptFormat) -> None:
        prefix = built_in.prefix([USER])
        assert prefix.text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        suffix = built_in.suffix(prefix.text, [USER], [Message("user", "And then?")])
        assert suffix == built_in.encode("<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n")

    @pytest.mark.parametrize(
        "cached", [[SYSTEM], [USER], [SYSTEM, USER], [USER, MODEL], [SYSTEM, USER, MODEL]]
    )
    def test_a_cache_may_end_on_any_turn(self, cached: list[Message], built_in: PromptFormat) -> None:
        prefix = built_in.prefix(cached)
        assert prefix.text.endswith("<|im_end|>\n")

    @pytest.mark.trap("T40")
    def test_the_generation_prompt_is_in_no_prefix_and_no_count(self, built_in: PromptFormat) -> None:
        assert len(built_in.prompt([USER]).token_ids) == built_in.count([USER]) + 4
        assert len(built_in.prefix([USER]).token_ids) == built_in.count([USER])

    @pytest.mark.trap("T45")
    def test_another_prefix_text_is_a_mismatch(self, built_in: PromptFormat) -> None:
        prefix = built_in.prefix([USER])
        with pytest.raises(CachePrefixMismatch, match="does not apply"):
            built_in.suffix(prefix.text, [Message("user", "Someone else?")], [USER])

    def test_nothing_new_is_refused(self, built_in: PromptFormat) -> None:
        with pytest.raises(InvalidArgument, match="contents are empty"):
            built_in.suffix(built_in.prefix([USER]).text, [USER], [])

    def test_nothing_to_cache_is_refused(self, built_in: PromptFormat) -> None:
        with pytest.raises(InvalidArgument, match="contents are empty"):
            built_in.prefix([])


@pytest.mark.trap("T38")
class TestTemplatesThatCannotCache:
    def test_one_that_wants_turns_to_alternate_refuses_a_cache_that_ends_on_a_user_turn(
        self, formats: dict[str, PromptFormat]
    ) -> None:
        with pytest.raises(TemplateUnsupported, match="roles must alternate"):
            formats["llama-2"].prefix([USER])
        assert formats["llama-2"].prefix([USER, MODEL]).text.endswith("I. </s>")

    def test_one_that_wants_turns_to_alternate_refuses_cached_turns_that_do_not(
        self, formats: dict[str, PromptFormat]
    ) -> None:
        with pytest.raises(
            InvalidArgument, match="refuses these contents: Conversation roles must alternate"
        ):
            formats["llama-2"].prefix([USER, USER])

    def test_one_that_writes_the_last_turn_differently(self, tmp_path: Path) -> None:
        template = (
            "{% for m in messages %}<|turn|>{{ m.role }}: "
            "{{ m.content if loop.last else m.content | trim }}\n{% endfor %}"
        )
        format_ = make_format(tmp_path / "model", template, special=("<|turn|>",))
        with pytest.raises(TemplateUnsupported, match="writes them differently when more contents follow"):
            format_.prefix([Message("user", " padded ")])
        assert format_.prefix([Message("user", "tight")]).text == "<|turn|>user: tight\n"

    def test_one_that_moves_the_system_text_to_the_last_turn(self, tmp_path: Path) -> None:
        template = (
            "{{ '<|start|>' }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
            "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
            "{% for m in rest %}<|turn|>{% if loop.last and system %}{{ system }}\n\n{% endif %}"
            "{{ m.content }}{% endfor %}"
        )
        format_ = make_format(tmp_path / "model", template, special=("<|start|>", "<|turn|>"))
        with pytest.raises(TemplateUnsupported, match="writes them again behind"):
            format_.prefix([SYSTEM])  # its text alone, "<|start|>", is a prefix of everything
        with pytest.raises(TemplateUnsupported, match="writes them differently"):
            format_.prefix([SYSTEM, USER])
        assert format_.prefix([USER]).text == "<|start|><|turn|>Who?"

    def test_one_whose_turns_have_no_control_token_between_them(self, tmp_path: Path) -> None:
        template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        with pytest.raises(TemplateUnsupported, match="no control token stands between"):
            make_format(tmp_path / "model", template).prefix([USER])

    def test_a_control_token_that_swallows_the_space_at_the_seam(self, tmp_path: Path) -> None:
        template = "{% for m in messages %}<|turn|>{{ m.content }}\n{% endfor %}"
        eater = AddedToken("<|turn|>", special=True, lstrip=True)
        with pytest.raises(TemplateUnsupported, match="no control token stands between"):
            make_format(tmp_path / "model", template, added=(eater,)).prefix([USER])

    def test_a_control_token_that_lies_across_the_seam(self, tmp_path: Path) -> None:
        template = "{% for m in messages %}<|turn|>{{ m.content }}<|end|>{% endfor %}"
        added = ("<|end|>", "<|turn|>", "<|end|><|turn|>")
        with pytest.raises(TemplateUnsupported, match="no control token stands between"):
            make_format(tmp_path / "model", template, added=added).prefix([USER])

    def test_one_that_writes_nothing_for_a_system_turn(self, tmp_path: Path) -> None:
        template = "{% for m in messages if m.role != 'system' %}<|turn|>{{ m.content }}{% endfor %}"
        with pytest.raises(TemplateUnsupported, match="writes nothing for them"):
            make_format(tmp_path / "model", template, special=("<|turn|>",)).prefix([SYSTEM])


class TestMismatchAtGenerate:
    def test_a_first_new_turn_that_the_template_refuses(self, formats: dict[str, PromptFormat]) -> None:
        prefix = formats["llama-2"].prefix([USER, MODEL])
        with pytest.raises(InvalidArgument, match="roles must alternate"):
            formats["llama-2"].suffix(prefix.text, [USER, MODEL], [MODEL, USER])

    def test_a_follower_without_a_control_token_at_the_seam(self, tmp_path: Path) -> None:
        template = (
            "{% for m in messages %}{% if m.role == 'user' %}<|turn|>{% endif %}{{ m.content }}\n{% endfor %}"
        )
        format_ = make_format(tmp_path / "model", template, special=("<|turn|>",))
        prefix = format_.prefix([USER])
        with pytest.raises(CachePrefixMismatch, match="melt into"):
            format_.suffix(prefix.text, [USER], [Message("assistant", "\nmerges"), USER])

    def test_a_follower_that_changes_how_cached_turns_are_written(self, tmp_path: Path) -> None:
        template = (
            "{% for m in messages %}<|turn|>{{ m.content if messages[-1].content != 'shout' "
            "else m.content | upper }}{% endfor %}"
        )
        format_ = make_format(tmp_path / "model", template, special=("<|turn|>",))
        prefix = format_.prefix([USER])
        with pytest.raises(CachePrefixMismatch, match="differently"):
            format_.suffix(prefix.text, [USER], [Message("user", "shout")])


@pytest.mark.trap("T45")
class TestDates:
    TEMPLATE = (
        "{{ '<|turn|>' + strftime_now('%d %b %Y') + '\n' }}"
        "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
    )

    def test_a_prefix_outlives_midnight_where_its_time_is_given(self, tmp_path: Path) -> None:
        format_ = make_format(tmp_path / "model", self.TEMPLATE, special=("<|turn|>",))
        created_at = datetime(2026, 1, 31, 12, tzinfo=UTC)
        prefix = format_.prefix([USER], at=created_at)
        assert prefix.text.startswith("<|turn|>31 Jan 2026\n")
        with pytest.raises(CachePrefixMismatch):
            format_.suffix(prefix.text, [USER], [USER])
        assert format_.suffix(prefix.text, [USER], [USER], at=created_at)

    def test_a_count_is_that_of_its_day(self, tmp_path: Path) -> None:
        template = "{{ '<|turn|>' * (strftime_now('%d') | int) }}{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
        format_ = make_format(tmp_path / "model", template, special=("<|turn|>",))
        third, last = datetime(2026, 1, 3, 12, tzinfo=UTC), datetime(2026, 1, 14, 12, tzinfo=UTC)
        for at in (third, last):
            assert format_.count([USER], at=at) == len(format_.prefix([USER], at=at).token_ids)
        assert format_.count([USER], at=last) == format_.count([USER], at=third) + 11


def test_a_refusal_does_not_read_like_a_cache_that_is_gone(tmp_path: Path) -> None:
    """A 400 about "cached content" makes some clients create the cache anew and ask again: in vain here."""
    marks = "{{ '<|start|>' if messages | length == 1 else '<|turn|>' }}"
    last = "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}<|turn|>{{ messages[0].content }}"
    no_seam = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for number, template in enumerate(
        (marks, "<|start|>{% if messages[1] %}" + last + "{% endif %}", no_seam)
    ):
        format_ = make_format(tmp_path / f"model {number}", template, special=("<|start|>", "<|turn|>"))
        with pytest.raises(TemplateUnsupported) as unsupported:
            format_.prefix([USER])
        assert not SOUNDS_GONE.search(unsupported.value.message)
    for text in ("<|turn|>Other?", "<|turn|>Who"):
        format_ = make_format(
            tmp_path / text,
            "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}",
            special=("<|turn|>",),
        )
        with pytest.raises(CachePrefixMismatch) as mismatch:
            format_.suffix(text, [USER], [USER])
        assert not SOUNDS_GONE.search(mismatch.value.message)


def test_a_suffix_takes_no_time_to_tokenise_the_prefix(built_in: PromptFormat) -> None:
    cached = [Message("user", "some words, 12 of them. " * 20_000)]
    prefix = built_in.prefix(cached)
    whole = min(seconds(lambda: built_in.encode(prefix.text)) for _ in range(2))
    rest = min(seconds(lambda: built_in.suffix(prefix.text, cached, [USER])) for _ in range(5))
    assert rest < whole / 20


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def test_a_mark_in_the_cached_text_does_not_move_the_seam(built_in: PromptFormat) -> None:
    cached = [Message("user", "ends with <|im_end|>")]
    prefix = built_in.prefix(cached)
    suffix = built_in.suffix(prefix.text, cached, [USER])
    assert prefix.token_ids + suffix == built_in.prompt([*cached, USER]).token_ids
