"""A GGUF file of a Llama model, unpacked into a Hugging Face folder with float32 weights.

Only what the built-in model needs is understood, and anything else is refused: a wrong guess would be a model that
answers nonsense. Values are GGUF's own, so the folder is as good as the quantised file, not as the original weights.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from core.errors import ModelUnsupported
from workers.engine.loading.progress import Progress

_CONTROL_TOKEN = 3  # GGUF's token type
_TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert_gguf(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write config, weights, tokenizer and chat template of `gguf` into the empty `folder`."""
    progress(f"Reading {gguf.name}", 0.0)
    reader = GGUFReader(gguf)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    _refuse_what_is_not_understood(facts)
    progress(f"Reading {gguf.name}", 1.0)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", _config(facts, tied=tied))
    _write_json(folder / "generation_config.json", _token_ids(facts))
    _write_tokenizer(folder, facts)
    weights = _unpack(reader.tensors, facts, progress)
    progress("Writing model.safetensors", 0.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    progress("Writing model.safetensors", 1.0)


def _refuse_what_is_not_understood(facts: dict[str, Any]) -> None:
    understood = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": False,
    }
    for name, expected in understood.items():
        if facts.get(name) != expected:
            raise ModelUnsupported(
                f"Only GGUF files with {name} = {expected!r} can be converted, and this one has {facts.get(name)!r}."
                " Use the Hugging Face folder of the model instead.",
                field="model",
            )
    if any(name.startswith("llama.rope.scaling") for name in facts):
        raise ModelUnsupported(
            "GGUF files with rope scaling cannot be converted. Use the Hugging Face folder.", field="model"
        )


def _config(facts: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts.get("llama.rope.dimension_count", facts["llama.embedding_length"] // heads),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        "max_position_embeddings": facts["llama.context_length"],
        "tie_word_embeddings": tied,
        "use_cache": True,
        **_token_ids(facts),
    }


def _token_ids(facts: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(folder: Path, facts: dict[str, Any]) -> None:
    tokens = facts["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[_pair(merge) for merge in facts["tokenizer.ggml.merges"]],
        )
    )
    # What GGUF calls "smollm": digits stand alone, so "\n\n1." keeps its paragraph break in one token.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
            "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
            "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
            "model_max_length": facts["llama.context_length"],
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(facts["tokenizer.chat_template"], encoding="utf-8")


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right


def _unpack(
    tensors: list[ReaderTensor], facts: dict[str, Any], progress: Progress
) -> dict[str, NDArray[np.float32]]:
    weights = {}
    for number, tensor in enumerate(tensors, start=1):
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name.endswith("attn_q.weight"):
            values = _halves_apart(values, facts["llama.attention.head_count"])
        elif tensor.name.endswith("attn_k.weight"):
            values = _halves_apart(values, facts["llama.attention.head_count_kv"])
        weights[_hugging_face_name(tensor.name)] = values
        progress("Unpacking weights", number / len(tensors))
    return weights


def _halves_apart(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF stores the two rows that rope turns together side by side, Hugging Face half a head apart."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _hugging_face_name(name: str) -> str:
    if name in _TENSOR_NAMES:
        return _TENSOR_NAMES[name]
    block, layer, rest = (*name.split(".", 2), "", "")[:3]
    if block != "blk" or rest not in _LAYER_TENSOR_NAMES:
        raise ModelUnsupported(
            f"The GGUF file has a tensor {name!r}, which no Llama has. Use the Hugging Face folder.",
            field="model",
        )
    return f"model.layers.{layer}.{_LAYER_TENSOR_NAMES[rest]}"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
