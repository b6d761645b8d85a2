import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from core.errors import AppError, ModelBroken, ModelTooLarge, ModelUnsupported
from tests.tiny_models import Family, tiny_model_folder
from workers.engine.loading.gate import check, check_fit, check_vocabulary

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def tensors() -> dict[str, NDArray[Any]]:
    layers = {
        f"model.layers.{layer}.self_attn.{part}_proj.weight": np.zeros((8, 8), np.float16)
        for layer in range(2)
        for part in "qkvo"
    }
    return {"model.embed_tokens.weight": np.zeros((10, 8), np.float16), **layers}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", CONFIG, tensors())


def write(folder: Path, config: dict[str, Any], weights: dict[str, NDArray[Any]]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_each_family_is_let_in(family: Family, tmp_path: Path) -> None:
    facts = check(tiny_model_folder(tmp_path, family, seed=0, layers=3, vocab=49200))
    assert (facts.model_type, facts.layers, facts.heads, facts.kv_heads) == (family, 3, 4, 2)
    assert (facts.head_size, facts.context_tokens, facts.vocab_size) == (16, 2048, 49200)
    assert facts.weight_bytes == 4 * facts.parameter_count > 4 * 2 * 49200 * 64


def test_the_numbers_are_those_of_the_files(folder: Path) -> None:
    facts = check(folder)
    assert (facts.head_size, facts.parameter_count, facts.weight_bytes) == (2, 592, 1184)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
        {"layer_types": ["full_attention", "full_attention"]},
        {"rope_parameters": None, "rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}},
        {"num_key_value_heads": None},
        {"model_type": "granite"},
        {"num_experts": 0, "is_encoder_decoder": False, "quantization_config": None},
    ],
)
def test_what_changes_nothing_for_a_prefix_is_let_in(change: dict[str, Any], tmp_path: Path) -> None:
    check(write(tmp_path / "model", {**CONFIG, **change}, tensors()))


@pytest.mark.trap("T8")
@pytest.mark.trap("T17")
@pytest.mark.trap("T38")
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised weights .*gptq"),
        ({"num_local_experts": 8}, r"a mixture of experts \(num_local_experts = 8\)"),
        ({"num_experts": 128}, "a mixture of experts"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"text_config": {"hidden_size": 8}}, "several media"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"attn_logit_softcapping": 50.0}, "soft-capped"),
        ({"alibi": True}, "ALiBi"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"mamba_d_state": 128}, r"state-space layers \(mamba_d_state\)"),
        ({"block_types": ["recurrent", "attention"]}, "layers of several kinds"),
        ({"sliding_window": 4096}, "a sliding window of 4096 tokens"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "a sliding window of 4096 tokens"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "1 of 2 layers without full attention"),
        (
            {"layer_types": ["linear_attention"] * 2},
            r"2 of 2 layers without full attention \(linear_attention\)",
        ),
        ({"no_rope_layers": [1, 0]}, "layers without rotary positions"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_parameters": None},
            "'dynamic' scaling",
        ),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "'longrope' scaling"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ between layers"),
        ({"model_type": "gpt2", "rope_parameters": None}, "no plain rotary positions"),
        ({"model_type": "mamba2", "rope_parameters": None}, "no plain rotary positions"),
        ({"model_type": "mymodel", "auto_map": {"AutoModelForCausalLM": "x.Y"}}, "code of its own"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "no causal language model"),
        ({"architectures": None}, "no causal language model"),
    ],
)
def test_another_kind_of_model_is_refused_with_what_was_found(
    change: dict[str, Any], found: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupported, match=found) as refusal:
        check(write(tmp_path / "model", {**CONFIG, **change}, tensors()))
    assert "Served are decoders with full attention" in refusal.value.message


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"model_type": None}, "names no model_type"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_attention_heads": "4"}, "num_attention_heads = '4'"),
        ({"vocab_size": True}, "vocab_size = True"),
        ({"max_position_embeddings": None}, "max_position_embeddings = None"),
        ({"num_key_value_heads": 3}, "4 attention heads and 3 KV heads"),
        ({"num_hidden_layers": 3}, "layer 2 of 3 has no"),
        ({"num_hidden_layers": 1}, "it has 2 layers and config.json says 1"),
        ({"vocab_size": 11}, r"token embedding is \(10, 8\) and config.json says \(11, 8\)"),
        ({"tie_word_embeddings": False}, "no lm_head.weight"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused(change: dict[str, Any], found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match=found):
        check(write(tmp_path / "model", {**CONFIG, **change}, tensors()))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)


def cut_in_the_header(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 50)


def too_long(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"\0" * 64)


def of_zeros(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\0" * 4096)


def with_a_huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def with_another_header(folder: Path) -> None:
    header = b'{"model.embed_tokens.weight": [1, 2]}'
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def pointer_of_git_lfs(folder: Path) -> None:
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )


def with_a_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {name: f"model-0000{number}-of-00002.safetensors" for number, name in ((1, "a"), (2, "b"))}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def with_a_shard_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def with_an_empty_index(folder: Path) -> None:
    without_weights(folder)
    (folder / "model.safetensors.index.json").write_text("{}")


def without_a_layers_tensor(folder: Path) -> None:
    weights = tensors()
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors")


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def an_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def of_integers(folder: Path) -> None:
    weights = {name: values.astype(np.int8) for name, values in tensors().items()}
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "error", "found"),
    [
        (without_weights, ModelBroken, "has no weights: neither model.safetensors nor"),
        (pickled, ModelUnsupported, "pytorch_model.bin, a pickle"),
        (cut_short, ModelBroken, "should have .*: it was cut short"),
        (cut_in_the_header, ModelBroken, "is no safetensors file"),
        (too_long, ModelBroken, "is no safetensors file"),
        (of_zeros, ModelBroken, "is no safetensors file"),
        (with_a_huge_header, ModelBroken, "its header claims"),
        (with_another_header, ModelBroken, "is no safetensors file"),
        (pointer_of_git_lfs, ModelBroken, "is no safetensors file"),
        (
            with_a_missing_shard,
            ModelBroken,
            "model-00002-of-00002.safetensors, one of 2 weight files, is missing",
        ),
        (with_a_shard_elsewhere, ModelBroken, "is missing"),
        (with_an_empty_index, ModelBroken, "lists no weights"),
        (without_a_layers_tensor, ModelBroken, "layer 1 of 2 has no model.self_attn.k_proj.weight"),
        (without_config, ModelBroken, "has no config.json"),
        (an_adapter, ModelUnsupported, "an adapter, not a model"),
        (of_integers, ModelUnsupported, "quantised .* is I8"),
    ],
)
def test_a_broken_folder_is_refused_with_what_is_wrong(
    damage: Callable[[Path], None], error: type[AppError], found: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(error, match=found) as refusal:
        check(folder)
    assert refusal.value.field == "model"


def test_shards_are_read_together(folder: Path) -> None:
    weights = tensors()
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    for number, part in ((1, names[:4]), (2, names[4:])):
        save_file({name: weights[name] for name in part}, folder / f"model-{number}.safetensors")
    shards = {name: f"model-{1 if name in names[:4] else 2}.safetensors" for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert check(folder).parameter_count == 592


def test_a_tokenizer_of_another_model_is_refused_with_the_numbers(folder: Path) -> None:
    facts = check(folder)
    check_vocabulary(facts, 10)
    with pytest.raises(ModelBroken, match="has 11 tokens, the model 10"):
        check_vocabulary(facts, 11)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(folder: Path) -> None:
    facts = check(folder)
    check_fit(facts, element_bytes=4, available_bytes=592 * 4)
    with pytest.raises(ModelTooLarge, match=r"5.92e-07 billion parameters .* 0\.00 GB .*4 bytes each"):
        check_fit(facts, element_bytes=4, available_bytes=592 * 4 - 1)
