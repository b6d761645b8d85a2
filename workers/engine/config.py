"""What an engine is told at start: plain values, so that the engine never reads settings or the environment."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers of a decoder that KV memory depends on."""

    layers: int
    kv_heads: int
    head_size: int
    context_tokens: int

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.layers * 2 * self.kv_heads * self.head_size * dtype.itemsize


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """fingerprint: of the model whose KV it is. arena_bytes: memory for KV blocks. tail_tokens: capacity of one private tail. pinned_share: part of the arena that
    pins may take, so that they never starve ordinary requests. prefill_stretch: how much longer than decode alone a step may
    take for prefill beside it (`Pace`), but for a burst of questions (`Shares`); None: always as much as a whole chunk takes."""

    device: torch.device
    dtype: torch.dtype
    arena_bytes: int
    prefill_chunk_tokens: int
    max_running_requests: int
    max_waiting_requests: int
    tail_tokens: int
    fingerprint: str = ""
    pinned_share: float = 0.5
    prefill_stretch: float | None = 2.2
