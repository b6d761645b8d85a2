"""Text to token ids: exactly the ids transformers gives for the same chat, whole or cut at a seam.

Knows added tokens (cut out of the text before anything else), where the tokenizer puts a BOS, and how many bytes a
token can stand for. Holds no state that encoding changes: any number of threads may use one.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from core.errors import InvalidArgument, ModelBroken
from prompting.control_tokens import ControlTokens
from prompting.detokenizer import BYTE_ALPHABET
from prompting.model_files import read_text
from prompting.special_tokens import named_tokens

# What pre-tokenizers do that keeps every byte of the text. The others may drop whitespace or punctuation.
_KEEPS_BYTES = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts"}


class PromptTokenizer:
    def __init__(self, backend: Tokenizer, *, control_tokens: ControlTokens, lead: list[int]) -> None:
        """`lead` is what stands before every text, normally one BOS or nothing."""
        self.backend = backend
        self.control_tokens = control_tokens
        self.added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
        self._lead = lead
        self._newline = self._ids("\n")

    def encode(self, text: str) -> list[int]:
        """Give the ids of a text from its start on, with exactly one BOS where the tokenizer or the template has one."""
        ids = self._encode_pieces(text, is_start=True)
        return ids if ids[: len(self._lead)] == self._lead else self._lead + ids

    def encode_rest(self, text: str) -> list[int]:
        """Give the ids of a text that follows another one, from the seam between them on."""
        return self._encode_pieces(text, is_start=False)

    def minimum_tokens(self, text: str) -> int:
        """Give a number of tokens that the text surely has, without tokenising it."""
        if not self._keeps_bytes:
            return 1 if text else 0
        if any(token.lstrip or token.rstrip for token in self.added.values()):
            text = "".join(text.split())  # such tokens swallow whitespace beside them
        if self.backend.normalizer is not None:
            text = self.backend.normalizer.normalize_str(text)
        kept = text.encode("utf-8", "replace").translate(None, self._lost_bytes)
        return -(-len(kept) // self.longest_token_bytes)

    @cached_property
    def longest_token_bytes(self) -> int:
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        if self._is_byte_level:  # each character of an entry stands for one byte
            longest = max(map(len, vocabulary), default=1)
        else:
            longest = max((len(entry.encode()) for entry in vocabulary), default=1)
        return max(longest, *(len(text.encode()) for text in self.added), 1)

    @cached_property
    def vocabulary_size(self) -> int:
        """One more than the highest id."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def _keeps_bytes(self) -> bool:
        """Whether every byte of a text, but the lost ones, ends up in some token. Not so where there are unknown words."""
        steps = _steps(state(self.backend.pre_tokenizer))
        if any(step["type"] not in _KEEPS_BYTES or step.get("behavior") == "Removed" for step in steps):
            return False
        return self._is_byte_level or all(
            self.backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)
        )

    @cached_property
    def _lost_bytes(self) -> bytes:
        """The bytes that a byte-level vocabulary has no token for: it drops them. Small ones lack control characters."""
        if not self._is_byte_level:
            return b""
        return bytes(
            byte for character, byte in BYTE_ALPHABET.items() if self.backend.token_to_id(character) is None
        )

    @cached_property
    def _is_byte_level(self) -> bool:
        return any(step["type"] == "ByteLevel" for step in _steps(state(self.backend.pre_tokenizer)))

    def _encode_pieces(self, text: str, *, is_start: bool) -> list[int]:
        (first, is_plain), *rest = self.control_tokens.split(text)
        ids = self._ids(first) if is_start else self._ids_after_text(first, is_plain=is_plain)
        for piece, is_plain in rest:
            ids += self._ids_after_text(piece, is_plain=is_plain)
        return ids

    def _ids_after_text(self, text: str, *, is_plain: bool) -> list[int]:
        """Encode from the middle of a text: behind a newline, so that no start-of-text space is put before it."""
        encode = self._plain_ids if is_plain else self._ids
        ids, lead = encode(f"\n{text}"), len(self._newline)
        ids = ids[lead:] if ids[:lead] == self._newline else encode(text)
        if is_plain and self.backend.token_to_id(text) in ids:
            raise InvalidArgument(
                f"The text {text!r} is a control token of this model and cannot be written as plain text: remove it.",
                field="contents",
            )
        return ids

    def _ids(self, text: str) -> list[int]:
        try:
            # The batch door, although one text goes through it: it computes no offsets, which halves the time.
            return self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:  # how the library says that it is no valid Unicode
            raise InvalidArgument(
                "The text has half a surrogate pair, which is no character: send valid Unicode.",
                field="contents",
            ) from None

    def _plain_ids(self, text: str) -> list[int]:
        """Encode without looking for added tokens."""
        if self.backend.normalizer is not None:
            text = self.backend.normalizer.normalize_str(text)
        pieces = [text]
        if self.backend.pre_tokenizer is not None:
            pieces = [piece for piece, _ in self.backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for piece in pieces for token in self.backend.model.tokenize(piece)]


def load_tokenizer(path: Path, *, template_text: str, config: Mapping[str, Any]) -> PromptTokenizer:
    """Read tokenizer.json, with what the chat template writes itself and tokenizer_config.json.

    Raises ModelBroken where the file is absent or damaged.
    """
    text = read_text(path)
    try:
        backend = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more exact
        raise ModelBroken(f"{path} is no tokenizer: {error}. Fetch the file again.", field="model") from error
    backend.no_truncation()
    backend.no_padding()
    added = list(backend.get_added_tokens_decoder().values())
    listed = config.get("chat_control_tokens")
    control = [
        token.content
        for token in added
        if token.special
        or (
            token.content in listed
            if listed is not None
            else token.content in template_text and not token.content.isspace()
        )
    ]
    return PromptTokenizer(
        backend,
        control_tokens=ControlTokens(control, [token.content for token in added]),
        lead=_lead(backend, config),
    )


def state(part: Any) -> dict[str, Any] | None:
    """A part of the tokenizer as tokenizer.json describes it."""
    return None if part is None else dict(json.loads(part.__getstate__()))


def _lead(backend: Tokenizer, config: Mapping[str, Any]) -> list[int]:
    """Give the ids that stand before every text: the tokenizer's own, unless its configuration says otherwise."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    start = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    wanted = config.get("add_bos_token")
    if wanted is False:
        return []
    if wanted is True and start == 0:
        bos_id = backend.token_to_id(named_tokens(config).get("bos_token", ""))
        return [] if bos_id is None else [bos_id]
    return list(whole[:start])


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A sequence of pre-tokenizers as a list, a single one as a list of one."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for each in part["pretokenizers"] for step in _steps(each)]
    return [part]
