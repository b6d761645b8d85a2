"""Which models are made up, and how much is measured of each."""

from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.engine.model import Model


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocabulary: int
    ties_embeddings: bool

    @property
    def weight_count(self) -> int:
        """Of the large matrices; norms are nothing beside them."""
        attention = 2 * self.hidden_size * self.head_size * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocabulary * self.hidden_size * (1 if self.ties_embeddings else 2)
        return self.layers * (attention + mlp) + embeddings


@dataclass(frozen=True, slots=True)
class Plan:
    """prefixes: tokens that are prefilled; questions and answers go behind the first. widths: requests that decode at once."""

    prefixes: tuple[int, ...]
    question_tokens: int
    widths: tuple[int, ...]
    repetitions: int
    chunk_tokens: int
    parity_tokens: int


SHAPES = {
    "1b": Shape(16, 32, 8, 64, 2048, 8192, 128_256, ties_embeddings=True),
    "8b": Shape(32, 32, 8, 128, 4096, 14_336, 128_256, ties_embeddings=False),
}
PLAN = Plan((8192, 32_768), 15, (1, 8, 32, 64), repetitions=20, chunk_tokens=2048, parity_tokens=1000)

TINY_SHAPES = {"tiny": Shape(2, 4, 2, 16, 64, 128, 320, ties_embeddings=True)}
TINY_PLAN = Plan((130, 200), 15, (1, 3), repetitions=2, chunk_tokens=64, parity_tokens=100)


def random_model(shape: Shape, plan: Plan, device: torch.device, dtype: torch.dtype) -> Model:
    """The same weights at each call, made on the device. Llama's architecture, with room for prefix, question and answer."""
    config = AutoConfig.for_model(
        "llama",
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=2 * max(plan.prefixes),
        tie_word_embeddings=shape.ties_embeddings,
    )
    torch.manual_seed(0)
    with device:
        module = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    return Model(module)
