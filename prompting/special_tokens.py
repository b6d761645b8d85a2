"""The tokens that have a name (BOS, EOS …) and those that end an answer, as a model folder states them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prompting.model_files import read_json_if_present

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Give the named tokens, which templates may write, from tokenizer_config.json."""
    found = {}
    for name in _NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def eos_token_ids(folder: Path, tokenizer_eos_id: int | None) -> tuple[int, ...]:
    """Give the ids that end an answer: the generation config's (else the model config's), and the tokenizer's own."""
    for name in ("generation_config.json", "config.json"):
        value = read_json_if_present(folder / name).get("eos_token_id")
        if value is not None:
            break
    else:
        value = []
    ids = set(value if isinstance(value, list) else [value])
    return tuple(sorted(ids if tokenizer_eos_id is None else ids | {tokenizer_eos_id}))
