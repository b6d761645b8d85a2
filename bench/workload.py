"""What is asked: documents of an exact number of tokens, and questions that nobody has asked before.

The same words for every contestant. They are drawn from a seed, so that two runs ask the same.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from prompting.format import PromptFormat
from prompting.messages import Message

SEED = 20261129
QUESTION_TOKENS = 15  # with the template's words around it, up to where the answer begins

_WORDS = """
red green blue old new small large round heavy light quiet narrow broad tall short
lamp chair table kettle ladder barrel basket mirror clock carpet bench drum saddle anvil
Anna Boris Clara David Emma Felix Greta Hugo Irene Jonas Karin Lukas Maria Nils Olga
attic cellar kitchen garden workshop stable chapel library harbour mill tower
mended bought sold lost found painted moved borrowed weighed counted
"""
_ADJECTIVES, _NOUNS, _PEOPLE, _PLACES, _VERBS = (line.split() for line in _WORDS.strip().splitlines())
_ASKED = ("Who {verb} the {noun}?", "Where is the {noun}?", "How old is the {noun}?", "Is the {noun} heavy?")
_FIRST_QUESTION = "What is this about?"
_FILLER = " so"  # one token, wherever it stands


@dataclass(frozen=True, slots=True)
class Document:
    """text: what a client caches, as one user turn. prefix_text: as the chat template writes it, `tokens` long.

    first_prompt: with a question behind it, for engines that keep nothing but what a request has computed.
    """

    text: str
    prefix_text: str
    first_prompt: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """question: the user turn behind the document. text: both, rendered, for engines that take a whole text."""

    question: str
    text: str


class Workload:
    """Each document and each question is given once."""

    def __init__(self, prompt_format: PromptFormat) -> None:
        self._format = prompt_format
        self._random = random.Random(SEED)  # noqa: S311 - words, no secrets
        self._questions = self._draw_questions()

    def document(self, tokens: int) -> Document:
        """A text whose rendered prefix has exactly this many tokens; it begins like no other."""
        return self._document(self._sentence(), tokens)

    def pair(self, shared: int, tokens: int) -> tuple[Document, Document, int]:
        """Two documents that begin with `shared` tokens alike, or a few more. With how many different tokens both have."""
        begin = self._fill(self._sentence(), shared).rstrip() + _FILLER
        first, second = (self._document(f"{begin} {self._sentence()}", tokens) for _ in range(2))
        one, other = (self._format.encode(each.prefix_text) for each in (first, second))
        alike = next(number for number, pair in enumerate(zip(one, other, strict=True)) if len(set(pair)) > 1)
        return first, second, len(one) + len(other) - alike

    def question(self) -> str:
        return next(self._questions)

    def prompt(self, document: Document, question: str) -> Prompt:
        return Prompt(question, self._render(document.text, question))

    def _document(self, begin: str, tokens: int) -> Document:
        text = self._fill(begin, tokens)
        prefix = self._format.prefix([Message("user", text)])
        assert len(prefix.token_ids) == tokens, "the filler is one token"
        return Document(text, prefix.text, self._render(text, _FIRST_QUESTION), tokens)

    def _fill(self, text: str, tokens: int) -> str:
        """Go on with a text until its prefix has so many tokens."""
        while (missing := tokens - self._count(text)) > 0:
            sentence = self._sentence()
            fitting = missing // len(self._format.encode(sentence))
            text += "".join(self._sentence() for _ in range(fitting)) if fitting else _FILLER * missing
        while self._count(text) > tokens:
            text = text.rsplit(" ", 1)[0]
        return text + _FILLER * (tokens - self._count(text))

    def _draw_questions(self) -> Iterator[str]:
        """In random order, and of one length."""
        every = [
            form.format(verb=verb, noun=f"{adjective} {noun}")
            for form in _ASKED
            for verb in (_VERBS if "{verb}" in form else [""])
            for adjective in _ADJECTIVES
            for noun in _NOUNS
        ]
        self._random.shuffle(every)
        stand_in = [Message("user", "x")]
        prefix_text = self._format.prefix(stand_in).text
        for question in every:
            if (
                len(self._format.suffix(prefix_text, stand_in, [Message("user", question)]))
                == QUESTION_TOKENS
            ):
                yield question

    def _render(self, text: str, question: str) -> str:
        return self._format.render(
            [Message("user", text), Message("user", question)], add_generation_prompt=True
        )

    def _sentence(self) -> str:
        draw = self._random.choice
        return (
            f"In the year {self._random.randrange(1500, 2000)} {draw(_PEOPLE)} {draw(_VERBS)} the {draw(_ADJECTIVES)} "
            f"{draw(_NOUNS)} in the {draw(_PLACES)} and paid {self._random.randrange(2, 900)} crowns for it. "
        )

    def _count(self, text: str) -> int:
        return self._format.count([Message("user", text)])
