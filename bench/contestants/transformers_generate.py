"""transformers' own way to ask twice against one prefix: a DynamicCache filled once, copied for each `generate`."""

import copy
import time
from typing import Any

import torch
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

from bench.contestant import Asked, Description, Kept
from bench.contestants.transformers_model import describe, load_model
from bench.workload import Document, Prompt


class CopiedCache:
    def __init__(self) -> None:
        self._tokenizer, self._model = load_model()
        self._prefix_text = ""
        self._prefix_ids = torch.empty(1, 0, dtype=torch.long)
        self._cache = DynamicCache()

    def describe(self) -> Description:
        return describe(self._model, {"cache": "DynamicCache, deep copy for each request"})

    @torch.inference_mode()
    def keep(self, document: Document) -> Kept:
        started = time.perf_counter()
        self._prefix_text, self._prefix_ids = document.prefix_text, self._encode(document.prefix_text)
        self._cache = DynamicCache(config=self._model.config)
        self._model(self._prefix_ids, cache=self._cache, logits_to_keep=1)
        return Kept(time.perf_counter() - started)

    @torch.inference_mode()
    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        started = time.perf_counter()
        suffix = self._encode(prompt.text.removeprefix(self._prefix_text))
        instants = _Instants(self._tokenizer)
        self._model.generate(
            torch.cat([self._prefix_ids, suffix], dim=1),
            cache=copy.deepcopy(self._cache),
            max_new_tokens=output_tokens,
            do_sample=False,
            eos_token_id=None,
            streamer=instants,
        )
        return Asked.from_times(started, instants.times)

    def close(self) -> None:
        pass

    def _encode(self, text: str) -> torch.Tensor:
        return torch.tensor([self._tokenizer.encode(text, add_special_tokens=False)])


class _Instants(BaseStreamer):
    """Notes when the text of each token is there. The first call brings the prompt."""

    def __init__(self, tokenizer: Any) -> None:
        self.times: list[float] = []
        self._tokenizer = tokenizer
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._is_prompt:
            self._tokenizer.decode(value.tolist())
            self.times.append(time.perf_counter())
        self._is_prompt = False

    def end(self) -> None:
        pass
