"""Random models of a few hundred kilobytes with the built-in model's tokenizer: real in every layer, quick to run."""

import shutil
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from core.settings import load_settings
from workers.engine.loading.built_in import built_in_model
from workers.engine.loading.progress import silent

Family = Literal["llama", "qwen2", "qwen3"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_BUILT_IN_VOCAB = 49152


def built_in_folder() -> Path:
    """Give the folder of the built-in model, converted where it is not yet."""
    return built_in_model(load_settings().model_cache_dir, silent)


def tiny_model_folder(
    tmp: Path,
    family: Family,
    *,
    seed: int,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    vocab: int | None = None,
    context_tokens: int = 2048,
) -> Path:
    """Write a random model that HEADSTART_MODEL may name; the same seed gives the same weights.

    The weights are large, so that each next token depends on all before it and greedy answers vary.
    """
    config = AutoConfig.for_model(
        family,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_size,
        vocab_size=vocab or _BUILT_IN_VOCAB,
        max_position_embeddings=context_tokens,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    _randomise(model, seed)
    folder = tmp / f"tiny-{family}-{seed}"
    model.save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copyfile(built_in_folder() / name, folder / name)
    return folder


def _randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_norm = weight.dim() == 1 and not name.endswith("bias")
            weight.copy_(1 + 0.2 * noise if is_norm else 0.3 * noise)
