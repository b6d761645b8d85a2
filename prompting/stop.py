"""Ends an answer at the first stop sequence, wherever tokens begin and end.

First is the one that is complete first; of those complete at the same character, the longest counts. How the text is
cut into pieces changes nothing. Each character costs the same (Knuth, Morris, Pratt), however long the sequences are.
"""

from collections.abc import Iterable


class StopMatcher:
    """Holds back the end of the text while it may yet become a stop sequence. Not thread-safe."""

    def __init__(self, stop_sequences: Iterable[str]) -> None:
        self._stops = [_Stop(text) for text in sorted(set(stop_sequences), key=len, reverse=True)]
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; give what may be shown, and whether a stop sequence is complete (it is not shown)."""
        if not self._stops:
            return text, False
        pending = self._held + text
        for end in range(len(self._held), len(pending)):
            complete = [stop for stop in self._stops if stop.is_complete_with(pending[end])]
            if complete:
                self._held = ""
                return pending[: end + 1 - len(complete[0].text)], True
        certain = len(pending) - max(stop.matched for stop in self._stops)
        self._held = pending[certain:]
        return pending[:certain], False

    def flush(self) -> str:
        """Give what was held back: no more text comes."""
        held, self._held = self._held, ""
        return held


class _Stop:
    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("an empty stop sequence matches everywhere")
        self.text = text
        self.matched = 0  # characters of `text` that the text so far ends with
        self._fallback = _fallbacks(text)

    def is_complete_with(self, character: str) -> bool:
        """Go one character on."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.text[self.matched] == character:
            self.matched += 1
        if self.matched < len(self.text):
            return False
        self.matched = self._fallback[-1]
        return True


def _fallbacks(text: str) -> list[int]:
    """For each beginning of the text: how much of its end is the text's beginning again."""
    fallback = [0] * len(text)
    length = 0
    for at in range(1, len(text)):
        while length and text[at] != text[length]:
            length = fallback[length - 1]
        if text[at] == text[length]:
            length += 1
        fallback[at] = length
    return fallback
