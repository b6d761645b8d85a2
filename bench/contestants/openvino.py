"""OpenVINO GenAI: continuous batching with automatic prefix caching, reading the same GGUF file as ours.

Prompts come rendered, so it pays for tokenising and detokenising, not for a template. Its own text streamer holds text
back for some tokens; the one here gives the text of each token at once.
"""

import time

import openvino_genai as ov

from bench.contestant import Asked, Description, FannedOut, Kept, Setting
from bench.machine import core_count
from bench.versions import versions
from bench.workload import Document, Prompt
from workers.engine.loading.built_in import find_gguf

# What was found best (docs/performance.md): larger batches than the default of 256 gain a tenth, other formats nothing.
_SCHEDULER: dict[str, Setting] = {
    "cache_size": 4,
    "enable_prefix_caching": True,
    "dynamic_split_fuse": True,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 256,
}
_PROPERTIES: dict[str, Setting] = {"KV_CACHE_PRECISION": "u8", "PERFORMANCE_HINT": "LATENCY"}


class OpenVino:
    def __init__(self) -> None:
        scheduler = ov.SchedulerConfig()
        for name, value in _SCHEDULER.items():
            setattr(scheduler, name, value)
        self._properties = _PROPERTIES | {"INFERENCE_NUM_THREADS": core_count()}
        self._pipeline = ov.LLMPipeline(
            str(find_gguf()), "CPU", scheduler_config=scheduler, **self._properties
        )
        self._tokenizer = self._pipeline.get_tokenizer()

    def describe(self) -> Description:
        return Description(versions("openvino", "openvino-genai"), _SCHEDULER | self._properties)

    def keep(self, document: Document) -> Kept:
        """It keeps what it has computed for a request: the first one about a document."""
        return Kept(self._ask(document.first_prompt, 1).first_text_s)

    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        return self._ask(prompt.text, output_tokens)

    def fan_out(self, prompts: list[Prompt], output_tokens: int) -> FannedOut:
        texts = [prompt.text for prompt in prompts]
        started = time.perf_counter()
        results = self._pipeline.generate(texts, _greedy(output_tokens))
        seconds = time.perf_counter() - started
        assert len(results.texts) == len(prompts), "an answer for each"
        return FannedOut(seconds, len(prompts) * output_tokens)

    def close(self) -> None:
        pass

    def _ask(self, text: str, output_tokens: int) -> Asked:
        instants = _Instants(self._tokenizer)
        started = time.perf_counter()
        self._pipeline.generate(text, _greedy(output_tokens), instants)
        return Asked.from_times(started, instants.times)


class _Instants(ov.StreamerBase):  # type: ignore[misc]  # it has no types
    """Notes when the text of each token is there."""

    def __init__(self, tokenizer: ov.Tokenizer) -> None:
        super().__init__()
        self.times: list[float] = []
        self._tokenizer = tokenizer

    def write(self, token: int | list[int]) -> ov.StreamingStatus:
        ids = [token] if isinstance(token, int) else token
        self._tokenizer.decode(ids)
        self.times += [time.perf_counter()] * len(ids)
        return ov.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def _greedy(output_tokens: int) -> ov.GenerationConfig:
    config = ov.GenerationConfig()
    config.max_new_tokens = output_tokens
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    return config
