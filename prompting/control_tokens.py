"""Keeps what a caller writes apart from what the chat template writes.

A caller may send "<|im_end|>" as text. It must reach the model as the characters it is, never as the control token that
ends a turn. So such pieces are wrapped in two private-use characters before the template runs, and the tokenizer takes
what lies between them as plain text. These are transformers' own rules (`sanitize_control_tokens=True`): its ids are
the ones we must match. The two marks themselves are removed from what a caller sends.
"""

import re
from collections.abc import Iterable

from prompting.messages import Message

_START, _END = "\U000f0000", "\U000f0001"


class ControlTokens:
    def __init__(self, control: Iterable[str], added: Iterable[str]) -> None:
        """`control` may not be written by a caller; `added` are all tokens that the tokenizer cuts out of text."""
        control = tuple(control)
        self._control = re.compile(_any_of(control))
        self._first_characters = {token[0] for token in control}
        self._marked = re.compile(f"{_START}({_any_of(added)}){_END}|[{_START}{_END}]")

    def mark(self, message: Message) -> Message:
        """Wrap every control token in the message's text."""
        text = message.text.replace(_START, "").replace(_END, "")
        if not any(character in text for character in self._first_characters):  # most texts, at memory speed
            return Message(message.role, text)
        return Message(message.role, self._control.sub(f"{_START}\\g<0>{_END}", text))

    def split(self, text: str) -> list[tuple[str, bool]]:
        """Cut rendered text at the marks: each piece, and whether it is plain text whatever it looks like.

        A template may cut a text between its marks; a lone mark is dropped, and still keeps its sides apart.
        """
        if _START not in text and _END not in text:
            return [(text, False)]
        pieces = self._marked.split(text)  # [text, marked or None, text, marked or None, ..., text]
        return [(piece, number % 2 == 1) for number, piece in enumerate(pieces) if piece is not None]


def _any_of(tokens: Iterable[str]) -> str:
    """Longest first: a token takes priority over the tokens it contains. No tokens match nothing."""
    return "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)"
