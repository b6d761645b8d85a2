"""A model that gives one and the same answer, byte for byte as written: real in every layer but its weights.

Each token has one successor. Attention and MLP add nothing, so that the next token depends on the last one alone; the
first is the successor of the token that ends every prompt.
"""

import shutil
from itertools import pairwise
from pathlib import Path

from prompting.detokenizer import BYTE_ALPHABET
from prompting.format import PromptFormat
from prompting.messages import Message
from prompting.model_files import read_json

# What JSON and stream readers stumble over, and characters whose bytes come in several tokens.
PIECES: tuple[bytes, ...] = (
    b"One",
    *(b"\xe2\x80", b"\xa8"),  # U+2028 LINE SEPARATOR
    b"two",
    *(b"\xe2", b"\x80", b"\xa9"),  # U+2029 PARAGRAPH SEPARATOR
    b"three",
    *(b"\xc2", b"\x85"),  # U+0085 NEXT LINE
    b"four",
    *(b"\x00", b"\x01", b"\x0b", b"\x0c", b"\r", b"\x1b", b"\x1c", b"\x7f"),
    b'"',
    b"\\",
    *(b"\xf0\x9f", b"\x91", b"\x8d"),  # 👍
    *(b"\xe6", b"\xbc", b"\xa2"),  # 漢
    *(b"\xc3", b"\x9f"),  # ß
    b"end",
)
TEXT = b"".join(PIECES).decode()
_HIDDEN = 64
_CERTAINTY = 4.0


def scripted_model_folder(source: Path, folder: Path) -> None:
    """Write a folder that HEADSTART_MODEL may name, with the tokenizer and template of the model in `source`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(source / name, folder / name)
    chain = _token_ids(folder)
    config = LlamaConfig(
        num_hidden_layers=1,
        hidden_size=_HIDDEN,
        intermediate_size=_HIDDEN,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=49152,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=chain[-1],
        pad_token_id=chain[-1],
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    layer = model.model.layers[0]
    with torch.no_grad():
        for silent in (layer.self_attn.o_proj, layer.mlp.down_proj, model.lm_head):
            silent.weight.zero_()
        embeddings = torch.nn.functional.normalize(torch.randn(config.vocab_size, _HIDDEN), dim=1)
        model.model.embed_tokens.weight.copy_(embeddings)
        for token, successor in pairwise(chain):
            model.lm_head.weight[successor] = _CERTAINTY * embeddings[token]
    model.save_pretrained(folder)


def _token_ids(folder: Path) -> list[int]:
    """The chain: the end of a prompt, the pieces, and the end of an answer."""
    prompts = PromptFormat.load(folder)
    vocabulary = read_json(folder / "tokenizer.json")["model"]["vocab"]
    letters = {byte: letter for letter, byte in BYTE_ALPHABET.items()}
    last = prompts.prompt([Message("user", "?")]).token_ids[-1]
    pieces = [vocabulary["".join(letters[byte] for byte in piece)] for piece in PIECES]
    chain = [last, *pieces, prompts.eos_token_ids[0]]
    assert len(set(chain)) == len(chain), "a token has one successor"
    return chain
