"""A GGUF file of a Llama with two layers, written as llama.cpp's converter writes the built-in model's."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

Values = NDArray[np.float32]

LAYERS, HIDDEN, HEADS, KV_HEADS, INNER = 2, 64, 4, 2, 96
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*CONTROL, *sorted(ByteLevel.alphabet()), "he", "ll", "hell", "hello", "ĊĊ", "Ġh"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ċ Ċ", "Ġ h"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def write_gguf(
    path: Path,
    *,
    seed: int = 0,
    architecture: str = "llama",
    pre: str = "smollm",
    more: Mapping[str, Values] | None = None,
) -> Path:
    """Write the file, with `more` tensors than such a model has."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in CONTROL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, values in _tensors(seed).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = GGMLQuantizationType.Q8_0 if "embd" in name else GGMLQuantizationType.Q4_1
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(seed: int) -> dict[str, Values]:
    random = np.random.default_rng(seed)
    kv = KV_HEADS * HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
