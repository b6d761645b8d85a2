"""The one path from messages to token ids, for counting, caching and generating alike.

A prompt that uses a cache is cut at a seam:

    render(cached)                 = prefix text              → ids stored with the cache
    render(cached + new, generate) = prefix text + remainder  → only the remainder is tokenised

so the ids of both together are those of the whole prompt. A template for which this fails is refused when the cache is
created, by a probe with a dummy user turn; contents that break it later are a mismatch, never a silent miss. The
generation prompt (the header of the model's turn) is part of what is generated from, and of nothing that is counted or
cached.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from core.errors import CachePrefixMismatch, InvalidArgument, ModelBroken, TemplateUnsupported
from prompting.detokenizer import Detokenizer, TokenBytes
from prompting.messages import Message
from prompting.model_files import read_json, read_json_if_present, read_text
from prompting.seam import Seams
from prompting.special_tokens import eos_token_ids, named_tokens
from prompting.template import ChatTemplate, TemplateRefusedError
from prompting.tokenizer import PromptTokenizer, load_tokenizer

_PROBE = Message("user", "Hello")
_STAND_IN = "x"


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a cache keeps: the text that every later prompt must start with, and its ids."""

    text: str
    token_ids: list[int]


class PromptFormat:
    """Chat template and tokenizer of one model. Never changes: any number of threads may use one.

    Texts given and taken here carry the marks of `prompting.control_tokens`. Where a template asks for the date, `at`
    decides: give a cache's creation time both at create and at generate, or its prefix ends at midnight.
    """

    def __init__(
        self, tokenizer: PromptTokenizer, template: ChatTemplate, *, digest: str, eos_ids: tuple[int, ...]
    ) -> None:
        self.digest = digest
        self.eos_token_ids = eos_ids
        self._tokenizer = tokenizer
        self._template = template
        self._seams = Seams(tokenizer.added)
        self._token_bytes = TokenBytes(tokenizer.backend)

    @classmethod
    def load(cls, folder: Path) -> "PromptFormat":
        """Read tokenizer.json, tokenizer_config.json and the chat template; raise ModelBroken on anything missing."""
        config = read_json(folder / "tokenizer_config.json")
        config = {
            **read_json_if_present(folder / "special_tokens_map.json"),
            **config,
        }  # the map is the older way
        names = named_tokens(config)
        source = _template_source(folder, config)
        try:
            template = ChatTemplate(source, names)
        except TemplateRefusedError as error:
            raise ModelBroken(
                f"The chat template in {folder} is not valid: {error}", field="model"
            ) from error
        path = folder / "tokenizer.json"
        tokenizer = load_tokenizer(path, template_text=template.literal_text, config=config)
        digest = hashlib.sha256(json.dumps([read_text(path), source, names], sort_keys=True).encode())
        eos_ids = eos_token_ids(folder, tokenizer.backend.token_to_id(names.get("eos_token", "")))
        return cls(tokenizer, template, digest=digest.hexdigest(), eos_ids=eos_ids)

    @property
    def longest_token_bytes(self) -> int:
        return self._tokenizer.longest_token_bytes

    @property
    def vocabulary_size(self) -> int:
        """One more than the highest token id."""
        return self._tokenizer.vocabulary_size

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one answer."""
        return Detokenizer(self._token_bytes)

    def token_text(self, token_id: int) -> str:
        """Write one token alone: a control token by its name, U+FFFD for bytes that are no whole characters."""
        return self._token_bytes.text(token_id)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, at: datetime | None = None
    ) -> str:
        """Write the messages as one text; raise InvalidArgument where the template refuses them."""
        try:
            return self._render(messages, add_generation_prompt=add_generation_prompt, at=at)
        except TemplateRefusedError as error:
            raise InvalidArgument(
                f"The chat template of this model refuses these contents: {error}", field="contents"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Give the ids of a rendered text, from its start."""
        return self._tokenizer.encode(text)

    def prompt(self, messages: Sequence[Message], *, at: datetime | None = None) -> Prompt:
        """Give the ids to generate from, without a cache."""
        return Prompt(self.encode(self.render(messages, add_generation_prompt=True, at=at)))

    def count(self, messages: Sequence[Message], *, at: datetime | None = None) -> int:
        """Count the tokens of the messages, without the generation prompt."""
        return len(self.encode(self.render(messages, add_generation_prompt=False, at=at)))

    def minimum_tokens(self, messages: Sequence[Message]) -> int:
        """Give a number of tokens that the messages surely have, without rendering or tokenising them.

        Whitespace around a message is left out, since templates may trim it. A template that drops more is not foreseen.
        """
        return self._tokenizer.minimum_tokens("".join(message.text.strip() for message in messages))

    def prefix(self, messages: Sequence[Message], *, at: datetime | None = None) -> Prefix:
        """Give what a cache of these messages keeps; raise TemplateUnsupported where no prompt could build on it."""
        text = self.render(messages, add_generation_prompt=False, at=at)
        try:
            whole, rest = self._probe(messages, text, at)
            stand_ins = [Message(message.role, _STAND_IN) for message in messages]
            _, rest_of_stand_ins = self._probe(
                stand_ins, self._render(stand_ins, add_generation_prompt=False, at=at), at
            )
        except TemplateRefusedError as error:
            raise _unsupported(f"it cannot go on with a user turn ({error})") from error
        if rest != rest_of_stand_ins:
            raise _unsupported("it writes them again behind the contents that follow")
        if not text:
            raise _unsupported("it writes nothing for them")
        if not self._seams.is_seam(text, rest):
            raise _unsupported("no control token stands between them and what follows")
        token_ids = self.encode(text)
        if token_ids + self._tokenizer.encode_rest(rest) != self.encode(whole):
            raise _unsupported("its tokens differ when more contents follow")
        return Prefix(text, token_ids)

    def suffix(
        self,
        prefix_text: str,
        cached_messages: Sequence[Message],
        new_messages: Sequence[Message],
        *,
        at: datetime | None = None,
    ) -> list[int]:
        """Give the ids that follow the cached ones, to generate from; raise CachePrefixMismatch where none could.

        Only what follows the prefix is tokenised.
        """
        if not new_messages:
            raise InvalidArgument("contents are empty: ask something of the cache.", field="contents")
        whole = self.render([*cached_messages, *new_messages], add_generation_prompt=True, at=at)
        if not whole.startswith(prefix_text):
            raise CachePrefixMismatch(
                "With these contents the chat template of this model writes what is cached differently, so the"
                " cache does not apply. Send contents that begin with a user turn, or everything without the cache.",
                field="contents",
            )
        rest = whole[len(prefix_text) :]
        if not self._seams.is_seam(prefix_text, rest):
            raise CachePrefixMismatch(
                "These contents would melt into the last token of the cached ones, so the cache does not apply. Send"
                " contents that begin with a user turn, or everything without the cache.",
                field="contents",
            )
        return self._tokenizer.encode_rest(rest)

    def _probe(self, messages: Sequence[Message], text: str, at: datetime | None) -> tuple[str, str]:
        """Go on from `text`, the messages rendered, with a user turn: the whole, and what it has behind `text`."""
        whole = self._render([*messages, _PROBE], add_generation_prompt=True, at=at)
        if not whole.startswith(text):
            raise _unsupported("it writes them differently when more contents follow")
        return whole, whole[len(text) :]

    def _render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, at: datetime | None
    ) -> str:
        if not messages:
            raise InvalidArgument("contents are empty: send at least one turn.", field="contents")
        marked = [self._tokenizer.control_tokens.mark(message) for message in messages]
        return self._template.render(marked, add_generation_prompt=add_generation_prompt, at=at)


def _unsupported(reason: str) -> TemplateUnsupported:
    return TemplateUnsupported(
        f"The chat template of this model does not allow these contents to be cached: {reason}. Contents that end"
        " elsewhere, after a user turn or after a model turn, may work.",
        field="contents",
    )


def _template_source(folder: Path, config: dict[str, object]) -> str:
    """The template of the folder: its own file, else the entry of tokenizer_config.json (one, or several by name)."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_text(path)
    entry = config.get("chat_template")
    if isinstance(entry, list):
        entry = {each.get("name"): each.get("template") for each in entry if isinstance(each, dict)}.get(
            "default"
        )
    if not isinstance(entry, str):
        raise ModelBroken(
            f"The model in {folder} has no chat template (chat_template.jinja): it was not trained to talk. Use its"
            " instruct or chat version.",
            field="model",
        )
    return entry
