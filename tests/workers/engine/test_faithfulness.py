"""A model that needs what this engine does not do is noticed by its answers, whatever its configuration says."""

import math
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from core.errors import ModelUnsupported
from tests.workers.engine.driving import engine_config
from tests.workers.engine.tiny import FAMILIES, VOCABULARY, tiny_modules
from workers.engine.attention import PartialAttention, plain_attention
from workers.engine.faithfulness import check_faithful
from workers.engine.model import Model


def check(module: PreTrainedModel, attend: PartialAttention = plain_attention, **config: int) -> None:
    model = Model(module)
    check_faithful(model, engine_config(model.shape, **config), attend)


def gemma_2(softcapping: float | None) -> PreTrainedModel:
    """A decoder whose attention scores may be capped: its configuration passes that on to whoever attends."""
    config = AutoConfig.for_model(
        "gemma2",
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        layer_types=["full_attention"] * 2,
        attn_logit_softcapping=softcapping,
        final_logit_softcapping=None,
    )
    module: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_let_in(family: str) -> None:
    module, _ = tiny_modules(family)
    check(module)


def test_tails_may_be_as_short_as_a_setting_allows() -> None:
    module, _ = tiny_modules("llama")
    check(module, tail_tokens=1)


@pytest.mark.trap("T38")
def test_scores_that_are_capped_are_noticed() -> None:
    check(gemma_2(softcapping=None))
    with pytest.raises(ModelUnsupported, match="with a shared prefix its logits differ by") as refusal:
        check(gemma_2(softcapping=0.5))
    assert refusal.value.field == "model"


def test_numbers_that_are_none_are_noticed() -> None:
    def broken(*args: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = plain_attention(*args, **how)
        return out * math.nan, lse

    module, _ = tiny_modules("llama")
    with pytest.raises(ModelUnsupported, match="differ by nan"):
        check(module, broken)
