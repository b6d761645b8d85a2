"""Tiny random decoders in memory, each beside an untouched twin that transformers runs by itself: the oracle."""

import copy
import random
from functools import cache

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

FAMILIES = ("llama", "qwen2", "qwen3")
VOCABULARY = 320
CONTEXT_TOKENS = 2048


class Oracle:
    """transformers' eager attention over the whole sequence, no cache: what every answer must agree with.

    Not `generate`: it takes tokens that equal the padding id for padding, and hides them.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        module.set_attn_implementation("eager")
        module.train(mode=False)
        self._module = module
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """The logits [answer tokens, vocabulary] that each token of the answer is drawn from, given all before it."""
        ids = (*prompt, *answer[:-1])
        if ids not in self._known:
            self._known[ids] = self._forward(ids)
        return self._known[ids][-len(answer) :]

    @torch.inference_mode()
    def _forward(self, ids: tuple[int, ...]) -> torch.Tensor:
        logits: torch.Tensor = self._module(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return logits.float()

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The most likely continuation, one whole forward a token."""
        answer: list[int] = []
        for _ in range(count):
            answer.append(int(self.logits(prompt, [*answer, 0])[-1].argmax()))
        return answer


@cache
def tiny_modules(family: str) -> tuple[PreTrainedModel, Oracle]:
    """Two layers of random weights, large enough that each token depends on all before it."""
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT_TOKENS,
    )
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_norm = weight.dim() == 1 and not name.endswith("bias")
            weight.copy_(1 + 0.2 * noise if is_norm else 0.3 * noise)
    return module, Oracle(copy.deepcopy(module))


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)
