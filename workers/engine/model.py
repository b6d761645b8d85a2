"""A transformers decoder driven by packed steps, through its public seams only.

The step travels as a forward keyword to a registered attention function; there is no transformers cache, so nothing is
concatenated or copied. A model that swallows the keyword is noticed at the first forward.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from workers.engine.config import ModelShape
from workers.engine.linear import speed_up_few_rows
from workers.engine.step import Step

_ATTENTION = "headstart"


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    headstart_step: Step,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention contract: query [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise TypeError(f"{type(module).__name__}.layer_idx is not an integer")
    return headstart_step.attention(layer, query, key, value, scaling), None


AttentionInterface.register(_ATTENTION, _attention)


class Model:
    """Weights on a device. forward() is the only thing the engine asks of it."""

    def __init__(self, module: PreTrainedModel) -> None:
        module.set_attn_implementation(_ATTENTION)
        module.train(mode=False)
        speed_up_few_rows(module)
        self._module = module
        config = module.config
        heads: int = config.num_attention_heads
        self.shape = ModelShape(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            context_tokens=config.max_position_embeddings,
        )
        self.vocab_size: int = config.vocab_size

    @classmethod
    def load(cls, folder: Path, *, device: torch.device, dtype: torch.dtype) -> "Model":
        """Load safetensors weights. The folder has passed the gate (workers.engine.loading.gate)."""
        disable_progress_bar()  # type: ignore[no-untyped-call]  # it would write to the server's log
        module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
        torch.nn.Module.to(module, device)
        return cls(module)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Run the packed rows. Returns logits [rows that want them, vocabulary] in float32."""
        output = self._module(
            input_ids=step.token_ids,
            position_ids=step.position_ids,
            use_cache=False,
            logits_to_keep=step.logit_tokens,
            headstart_step=step,
        )
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    def workspace_bytes(self, tokens: int) -> int:
        """What a forward over so many tokens holds at once beside weights and KV: what a layer's MLP makes of them."""
        config = self._module.config
        width: int = 3 * (config.hidden_size + config.intermediate_size)
        return tokens * width * self._module.dtype.itemsize

    @torch.inference_mode()
    def plain_forward(self, token_ids: list[int]) -> torch.Tensor:
        """transformers' own attention over a whole text. Returns logits [tokens, vocabulary] in float32: the reference."""
        self._module.set_attn_implementation("eager")
        try:
            output = self._module(
                input_ids=torch.tensor([token_ids], device=self._module.device), use_cache=False
            )
        finally:
            self._module.set_attn_implementation(_ATTENTION)
        logits: torch.Tensor = output.logits[0]
        return logits.float()
