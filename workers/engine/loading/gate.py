"""Who is let in: decoders whose KV is a function of weights, tokens and positions, and that fit.

A prefix computed once can only be read by others when every layer attends to all that came before and positions are
plain rotary ones. Anything else would answer wrongly without an error, so it is refused here, with what was found.
Reads JSON and file headers only.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ModelBroken, ModelTooLarge, ModelUnsupported
from prompting.model_files import read_json
from workers.engine.loading.weights import (
    Tensor,
    parameter_count,
    read_tensors,
    refuse_quantised,
    weight_files,
)

FAMILIES = ("llama", "qwen2", "qwen3")  # compared with transformers in the tests
_STATIC_ROPES = {
    "default",
    "linear",
    "llama3",
    "yarn",
}  # frequencies that do not depend on the length of the text
_REFUSED_FIELDS = {
    "quantization_config": "quantised weights",
    "compression_config": "compressed weights",
    "text_config": "a model of several media",
    "vision_config": "a model of several media",
    "audio_config": "a model of several media",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "moe_num_experts": "a mixture of experts",
    "kv_lora_rank": "latent attention (MLA)",
    "attention_chunk_size": "chunked attention",
    "dual_chunk_attention_config": "chunked attention",
    "attn_logit_softcapping": "soft-capped attention",
    "alibi": "ALiBi positions",
    "attention_window_size": "windowed attention",
    "hybrid_override_pattern": "layers of several kinds",
    "layers_block_type": "layers of several kinds",
    "block_types": "layers of several kinds",
    "attn_layer_indices": "layers of several kinds",
    "linear_num_key_heads": "linear attention",
    "is_encoder_decoder": "an encoder",
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    model_type: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context_tokens: int
    vocab_size: int
    parameter_count: int
    weight_bytes: int  # as stored; in memory it is parameter_count × the bytes of the engine's number format


def check(folder: Path) -> ModelFacts:
    """Give the numbers of a model that can be served.

    Raises ModelBroken where the folder is damaged or not complete, ModelUnsupported where the model is of another kind.
    """
    if not (folder / "config.json").exists() and (folder / "adapter_config.json").exists():
        raise ModelUnsupported(
            f"{folder} holds an adapter, not a model. Merge it into its base model and use the merged folder.",
            field="model",
        )
    config = read_json(folder / "config.json")
    check_config(config)
    tensors = read_tensors(weight_files(folder))
    refuse_quantised(tensors)
    heads, layers = _number(config, "num_attention_heads"), _number(config, "num_hidden_layers")
    kv_heads = _number(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    hidden, vocab_size = _number(config, "hidden_size"), _number(config, "vocab_size")
    if heads % kv_heads:
        raise ModelBroken(
            f"config.json has {heads} attention heads and {kv_heads} KV heads, which do not divide. Fetch it again.",
            field="model",
        )
    _check_tensors(tensors, config, layers=layers, vocab_size=vocab_size, hidden=hidden)
    return ModelFacts(
        model_type=str(config["model_type"]),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=_number(config, "head_dim") if config.get("head_dim") else hidden // heads,
        context_tokens=_number(config, "max_position_embeddings"),
        vocab_size=vocab_size,
        parameter_count=parameter_count(tensors),
        weight_bytes=sum(tensor.byte_count for tensor in tensors.values()),
    )


def check_vocabulary(facts: ModelFacts, vocabulary_size: int) -> None:
    """Refuse a tokenizer with more tokens than the model has embeddings."""
    if vocabulary_size > facts.vocab_size:
        raise ModelBroken(
            f"The tokenizer has {vocabulary_size} tokens, the model {facts.vocab_size}: they do not belong together."
            " Fetch the complete folder of the model.",
            field="model",
        )


def check_fit(facts: ModelFacts, *, element_bytes: int, available_bytes: int) -> None:
    """Refuse a model whose weights, `element_bytes` a parameter, are more than the memory there is."""
    needed = facts.parameter_count * element_bytes
    if needed > available_bytes:
        raise ModelTooLarge(
            f"The model has {facts.parameter_count / 1e9:.3g} billion parameters and needs {_gigabytes(needed)} for its"
            f" weights alone ({element_bytes} bytes each); {_gigabytes(available_bytes)} are available. Use a smaller"
            " model, a shorter number format (HEADSTART_DTYPE), or more memory.",
            field="model",
        )


def check_config(config: dict[str, Any]) -> None:
    """Refuse what config.json says outright cannot be served."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelBroken(
            "config.json names no model_type. Fetch the complete folder of the model.", field="model"
        )
    for name, meaning in _REFUSED_FIELDS.items():
        if config.get(name):
            raise _unsupported(kind, f"{meaning} ({name} = {_short(config[name])})")
    for name in config:
        if name.startswith(("mamba", "ssm_")):
            raise _unsupported(kind, f"state-space layers ({name})")
    _check_attention(kind, config)
    _check_positions(kind, config)
    architectures = config.get("architectures") or []
    if not any(str(name).endswith("ForCausalLM") for name in architectures):
        raise _unsupported(kind, f"no causal language model (architectures = {_short(architectures)})")
    if kind not in FAMILIES and config.get("auto_map"):
        raise _unsupported(kind, "code of its own (auto_map), which is never run")


def _check_attention(kind: str, config: dict[str, Any]) -> None:
    others = [str(each) for each in config.get("layer_types") or [] if each != "full_attention"]
    if others:
        layers = len(config["layer_types"])
        raise _unsupported(kind, f"{len(others)} of {layers} layers without full attention ({others[0]})")
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True) and not config.get("layer_types"):
        raise _unsupported(kind, f"a sliding window of {window} tokens")


def _check_positions(kind: str, config: dict[str, Any]) -> None:
    if any(each == 0 for each in config.get("no_rope_layers") or []):
        raise _unsupported(kind, "layers without rotary positions (no_rope_layers)")
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict) or any(isinstance(each, dict) for each in scaling.values()):
        raise _unsupported(kind, "rotary positions that differ between layers (rope_parameters)")
    rope = scaling.get("rope_type") or scaling.get("type") or "default"
    if rope not in _STATIC_ROPES:
        raise _unsupported(
            kind,
            f"{rope!r} scaling of rotary positions, which depends on the length of the text (known:"
            f" {', '.join(sorted(_STATIC_ROPES))})",
        )
    if kind not in FAMILIES and "rope_theta" not in {*config, *scaling}:
        raise _unsupported(kind, "no plain rotary positions (no rope_theta)")


def _check_tensors(
    tensors: dict[str, Tensor], config: dict[str, Any], *, layers: int, vocab_size: int, hidden: int
) -> None:
    """Every layer must have what the first has, and there must be an embedding of the size that config.json says."""
    parts: dict[str, set[str]] = {}
    for name in tensors:
        before, found, after = name.partition("layers.")
        if found:
            number, _, part = after.partition(".")
            parts.setdefault(number, set()).add(before + part)
    complete = parts.get("0", set())
    for layer in range(layers):
        missing = sorted(complete - parts.get(str(layer), set()))
        if missing or not complete:
            raise _incomplete(f"layer {layer} of {layers} has no {missing[0] if missing else 'weights'}")
    if len(parts) != layers:
        raise _incomplete(f"it has {len(parts)} layers and config.json says {layers}")
    if config["model_type"] not in FAMILIES:
        return  # other families name their outer tensors in their own ways
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is None or embedding.shape != (vocab_size, hidden):
        found_shape = None if embedding is None else embedding.shape
        raise _incomplete(f"its token embedding is {found_shape} and config.json says {(vocab_size, hidden)}")
    if not config.get("tie_word_embeddings") and "lm_head.weight" not in tensors:
        raise _incomplete("it has no lm_head.weight")


def _number(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelBroken(
            f"config.json has {name} = {_short(value)}, which must be a positive number. Fetch the file again.",
            field="model",
        )
    return value


def _unsupported(kind: str, found: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"This model ({kind}) cannot be served: it has {found}. Served are decoders with full attention and plain rotary"
        f" positions, such as {', '.join(FAMILIES)}.",
        field="model",
    )


def _incomplete(found: str) -> ModelBroken:
    return ModelBroken(
        f"The weights do not fit config.json: {found}. Fetch the complete folder of the model.", field="model"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
