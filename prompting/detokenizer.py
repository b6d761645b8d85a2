"""Token ids to text while they come: each character once all its bytes are there, never half of one.

Equal to decoding all ids at once without special tokens (where byte-fallback tokens form no character, how many U+FFFD
stand for them may differ). U+FFFD appears only where the model itself wrote bytes that are no character, or stopped in
the middle of one. The time is linear in the tokens.
"""

import codecs
import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from core.errors import ModelUnsupported

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes each token stands for, read off the decoder of the tokenizer. Shared by all detokenizers of a model."""

    def __init__(self, backend: Tokenizer) -> None:
        self._token_of = backend.id_to_token
        self._special_ids = {
            number for number, token in backend.get_added_tokens_decoder().items() if token.special
        }
        decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self._bytes_of, self.drops_first_space = _reader(decoder)
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """Give the token's bytes: none for special tokens and for ids that no token has."""
        known = self._known.get(token_id)
        if known is None:
            token = None if token_id in self._special_ids else self._token_of(token_id)
            known = self._known[token_id] = b"" if token is None else self._bytes_of(token)
        return known

    def text(self, token_id: int) -> str:
        """Give the token on its own; its name where it stands for no text."""
        return self.of(token_id).decode("utf-8", "replace") or self._token_of(token_id) or ""


class Detokenizer:
    """One answer's text so far. Not thread-safe."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = token_bytes.drops_first_space

    def push(self, token_id: int) -> str:
        """Take the next token; give the characters that are complete now."""
        return self._from_start(self._decoder.decode(self._bytes.of(token_id)))

    def finish(self) -> str:
        """Give what is left: U+FFFD where the model ended inside a character."""
        return self._from_start(self._decoder.decode(b"", final=True))

    def _from_start(self, text: str) -> str:
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


def _reader(decoder: dict[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """How a token is read, and whether a space at the very start is one that the tokenizer had put there."""
    steps = decoder.get("decoders", [decoder]) if decoder is not None else []
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, False
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        mark, space = steps[0]["pattern"].get("String"), steps[0]["content"]
        if mark is not None:
            return lambda token: _byte_fallback(token, mark, space), _strips_one_space(steps[-1])
    raise ModelUnsupported(
        f"The tokenizer decodes with {' + '.join(kinds) or 'nothing'}, which is not known here. Known are ByteLevel"
        " and Replace + ByteFallback + Fuse (+ Strip).",
        field="model",
    )


def _strips_one_space(step: dict[str, Any]) -> bool:
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] == 1)


def _byte_level(token: str) -> bytes:
    """A character a byte; an added token that has other characters is the text it is."""
    try:
        return bytes(BYTE_ALPHABET[character] for character in token)
    except KeyError:
        return token.encode()


def _byte_fallback(token: str, mark: str, space: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(mark, space).encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are themselves, the others are moved behind U+0100 in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + number): byte for number, byte in enumerate(moved)
    }


BYTE_ALPHABET = _byte_alphabet()
