import time

import pytest
from hypothesis import example, given, strategies as st

from prompting.stop import StopMatcher

letters = st.text(alphabet="ab", max_size=30)
stops_of_letters = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        shown.append(text)
        if is_stopped:
            return shown, True
    return [*shown, matcher.flush()], False


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The same by str.find: the stop that is complete first, the longest of those."""
    ends = {stop: text.find(stop) + len(stop) for stop in stops if stop in text}
    if not ends:
        return text, False
    end = min(ends.values())
    return text[: end - max(len(stop) for stop in ends if ends[stop] == end)], True


@given(stops=stops_of_letters, pieces=st.lists(letters, max_size=8))
@example(stops=["abab"], pieces=["aba", "bab"])
@example(stops=["ab", "bab"], pieces=["b", "ab"])
@example(stops=["aabaaa", "b"], pieces=["aab", "aaa"])
def test_what_is_shown_ends_where_str_find_says(stops: list[str], pieces: list[str]) -> None:
    shown, is_stopped = run(stops, pieces)
    assert ("".join(shown), is_stopped) == cut("".join(pieces), stops)


@given(stops=stops_of_letters, text=letters)
def test_no_more_is_held_back_than_may_become_a_stop(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    seen, shown = "", ""
    for character in text:
        piece, is_stopped = matcher.push(character)
        seen, shown = seen + character, shown + piece
        if is_stopped:
            return
        held = seen[len(shown) :]
        assert seen == shown + held
        ends = [seen[-size:] for size in range(1, len(seen) + 1)]
        longest = max((len(end) for end in ends if any(stop.startswith(end) for stop in stops)), default=0)
        assert len(held) == longest


def test_a_stop_may_lie_across_pieces() -> None:
    assert run(["\n\nUser:"], ["Fine.\n", "\nUs", "er: what"]) == (["Fine.", "", ""], True)


def test_what_did_not_become_a_stop_is_shown() -> None:
    assert run(["STOP"], ["ST", "OX", "ST"]) == (["", "STOX", "", "ST"], False)


def test_without_stops_everything_is_shown_at_once() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], False)


def test_an_empty_stop_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="empty stop sequence"):
        StopMatcher([""])


def test_time_is_linear_in_stop_and_text() -> None:
    stop = "a" * 50_000 + "b"
    start = time.perf_counter()
    run([stop], ["a" * 100] * 1000)
    assert time.perf_counter() - start < 5
