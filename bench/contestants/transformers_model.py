"""What both ways of transformers need: our converted weights, which it reads with its own code."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.contestant import Description, Setting
from bench.machine import this_machine
from bench.versions import versions
from core.settings import load_settings
from workers.engine.loading.built_in import built_in_model
from workers.engine.loading.progress import silent


def load_model() -> tuple[Any, Any]:
    """Tokenizer and model, in the format that is fastest on this processor: bf16 where it is native."""
    folder = built_in_model(load_settings().model_cache_dir, silent)
    dtype = torch.bfloat16 if this_machine().computes_bfloat16 else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    torch.nn.Module.train(model, mode=False)
    return AutoTokenizer.from_pretrained(folder), model


def describe(model: Any, settings: dict[str, Setting]) -> Description:
    own = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,  # noqa: SLF001 - its only name
        "threads": torch.get_num_threads(),
    }
    return Description(versions("transformers", "torch"), own | settings)
