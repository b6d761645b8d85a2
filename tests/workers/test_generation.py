"""Which text is shown and which tokens are counted, against a plain search in the whole text."""

import codecs
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from core.messages import FinishReason, Generate, TokensEvent
from core.sampling import Sampling
from prompting.format import PromptFormat
from workers.generation import Generation

# Tokens of the built-in model: cut characters, overlapping beginnings, and one that is no text.
WORDS = {
    81: b"a", 82: b"b", 369: b"ab", 8094: b"ba", 20534: b"aba", 15659: b"bb", 253: b" a", 2756: b"\xc3\xa9",
    142: b"\xc3", 119: b"\xa9", 187: b"\xf0", 249: b"\x9f", 242: b"\x98", 218: b"\x80", 2: b"",
}  # fmt: skip
STOPS = ("a", "ab", "aba", "bab", "bb a", "abab", "é", "😀", "b😀", "\ufffd", "\ufffda", "aé")
A, B, AB, ABA, BB, E_ACUTE, NO_TEXT = 81, 82, 369, 20534, 15659, 2756, 2
GRIN = (187, 249, 242, 218)


@dataclass(frozen=True)
class Outcome:
    events: list[TokensEvent]
    output_tokens: int
    drawn: int
    is_stopped: bool

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for event in self.events for token_id in event.token_ids]


def generate(prompt_format: PromptFormat, token_ids: list[int], stops: tuple[str, ...]) -> Outcome:
    events: list[TokensEvent] = []
    message = Generate("gen_1", 1, "proj_1", None, (1,), Sampling(0.0, 1.0, 0, 0), len(token_ids), stops)
    generation = Generation(message, prompt_format.detokenizer, events.append)
    (candidate,) = generation.candidates
    is_stopped, drawn = False, 0
    for token_id in token_ids:
        is_stopped = candidate.push(token_id)
        drawn += 1
        if is_stopped:
            break
    candidate.finish(FinishReason.STOP if is_stopped else FinishReason.MAX_TOKENS)
    return Outcome(events, generation.output_tokens, drawn, is_stopped)


def first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the stop begins that is complete first; of those complete at the same character, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end - max(map(len, complete))
    return None


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    token_ids=st.lists(st.sampled_from(sorted(WORDS)), max_size=20),
    stops=st.lists(st.sampled_from(STOPS), max_size=3, unique=True).map(tuple),
)
@example(token_ids=[A, *GRIN, B], stops=("😀",))
@example(token_ids=[ABA, BB], stops=("bab", "bb a"))
@example(token_ids=[A, 142], stops=("\ufffd",))
def test_text_and_count_are_those_of_a_search_in_the_whole(
    prompt_format: PromptFormat, token_ids: list[int], stops: tuple[str, ...]
) -> None:
    outcome = generate(prompt_format, token_ids, stops)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, begins = "", []
    for token_id in token_ids[: outcome.drawn]:
        begins.append(len(text))
        text += decoder.decode(WORDS[token_id])
    found = first_stop(text, stops)
    assert (found is not None) == outcome.is_stopped
    if found is None:  # the end may complete a stop, or half a character
        text += decoder.decode(b"", final=True)
        found = first_stop(text, stops)
    if found is None:
        assert outcome.text == text
        assert outcome.token_ids == token_ids
    else:
        assert outcome.text == text[:found]
        assert outcome.token_ids == [
            token_id for token_id, begin in zip(token_ids, begins, strict=False) if begin < found
        ]
    assert outcome.output_tokens == len(outcome.token_ids)
    assert [event.number for event in outcome.events] == list(range(len(outcome.events)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    token_ids=st.lists(st.sampled_from(sorted(WORDS)), max_size=20),
    stops=st.lists(st.sampled_from(STOPS), max_size=3, unique=True).map(tuple),
)
def test_no_more_is_held_back_than_could_become_a_stop(
    prompt_format: PromptFormat, token_ids: list[int], stops: tuple[str, ...]
) -> None:
    events: list[TokensEvent] = []
    message = Generate("gen_1", 1, "proj_1", None, (1,), Sampling(0.0, 1.0, 0, 0), 99, stops)
    (candidate,) = Generation(message, prompt_format.detokenizer, events.append).candidates
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for token_id in token_ids:
        if candidate.push(token_id):
            break
        text += decoder.decode(WORDS[token_id])
        shown = "".join(event.text for event in events)
        assert text.startswith(shown)
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_each_token_is_its_own_event_where_nothing_is_held(prompt_format: PromptFormat) -> None:
    outcome = generate(prompt_format, [A, AB, E_ACUTE], ())
    assert outcome.events == [
        TokensEvent(0, (A,), "a"),
        TokensEvent(1, (AB,), "ab"),
        TokensEvent(2, (E_ACUTE,), "é"),
    ]


def test_the_tokens_of_one_character_come_together(prompt_format: PromptFormat) -> None:
    outcome = generate(prompt_format, [A, *GRIN, B], ())
    assert outcome.events == [
        TokensEvent(0, (A,), "a"),
        TokensEvent(1, GRIN, "😀"),
        TokensEvent(2, (B,), "b"),
    ]


def test_a_token_half_in_a_stop_is_counted_and_one_wholly_in_it_is_not(prompt_format: PromptFormat) -> None:
    outcome = generate(prompt_format, [B, BB, A, B, A], ("bab",))
    assert outcome == Outcome([TokensEvent(0, (B, BB), "bb")], output_tokens=2, drawn=4, is_stopped=True)


def test_a_stop_at_the_very_start_leaves_nothing(prompt_format: PromptFormat) -> None:
    assert generate(prompt_format, [AB, A], ("ab",)) == Outcome([], 0, drawn=1, is_stopped=True)


def test_a_token_without_text_is_counted_with_what_follows_it(prompt_format: PromptFormat) -> None:
    assert generate(prompt_format, [NO_TEXT, A], ()).events == [TokensEvent(0, (NO_TEXT, A), "a")]
    assert generate(prompt_format, [A, NO_TEXT], ()).token_ids == [A, NO_TEXT]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_an_answer_that_ends_inside_a_character_says_so(prompt_format: PromptFormat, cut: int) -> None:
    outcome = generate(prompt_format, [A, *GRIN[:cut]], ())
    assert outcome.text == "a\ufffd"
    assert outcome.token_ids == [A, *GRIN[:cut]]


def test_every_event_tells_how_much_of_the_prompt_was_there_already(prompt_format: PromptFormat) -> None:
    events: list[TokensEvent] = []
    message = Generate("gen_1", 1, "proj_1", None, (1,), Sampling(0.0, 1.0, 0, 0), 9, (), candidate_count=2)
    generation = Generation(message, prompt_format.detokenizer, events.append)
    generation.implicit_cache_tokens = 64
    for candidate in generation.candidates:
        candidate.push(A)
        candidate.push(B)
    assert [event.number for event in events] == [0, 1, 2, 3]
    assert [event.candidate for event in events] == [0, 0, 1, 1]
    assert {event.implicit_cache_tokens for event in events} == {64}
