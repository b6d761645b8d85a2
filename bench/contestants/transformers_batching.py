"""transformers' continuous batching, which shares the blocks of a prefix between requests."""

import time

from transformers import ContinuousBatchingConfig, GenerationConfig

from bench.contestant import Description, FannedOut, Kept, Setting
from bench.contestants.transformers_model import describe, load_model
from bench.workload import Document, Prompt

# Blocks of 256 tokens: room for a whole context and some private blocks for each of many requests.
_PAGE_TOKENS, _BLOCKS, _STEP_TOKENS = 256, 128, 1024


class Batching:
    def __init__(self) -> None:
        self._tokenizer, self._model = load_model()

    def describe(self) -> Description:
        settings: dict[str, Setting] = {
            "page_size": _PAGE_TOKENS,
            "num_blocks": _BLOCKS,
            "max_batch_tokens": _STEP_TOKENS,
        }
        return describe(self._model, settings)

    def keep(self, document: Document) -> Kept:
        """It keeps the blocks of what it has computed for a request: the first one about a document."""
        started = time.perf_counter()
        self._generate([document.first_prompt], 1)
        return Kept(time.perf_counter() - started)

    def fan_out(self, prompts: list[Prompt], output_tokens: int) -> FannedOut:
        started = time.perf_counter()
        count = self._generate([prompt.text for prompt in prompts], output_tokens)
        return FannedOut(time.perf_counter() - started, count)

    def close(self) -> None:
        self._model.destroy_cached_continuous_batching_manager()

    def _generate(self, texts: list[str], output_tokens: int) -> int:
        """Give the number of tokens that came. The manager, and the blocks with it, stay for the next call."""
        outputs = self._model.generate_batch(
            [self._tokenizer.encode(text, add_special_tokens=False) for text in texts],
            GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            ContinuousBatchingConfig(
                page_size=_PAGE_TOKENS, num_blocks=_BLOCKS, max_batch_tokens=_STEP_TOKENS
            ),
            persistent_manager=True,
            max_new_tokens=output_tokens,
        )
        answers = [output.generated_tokens for output in outputs.values()]
        for answer in answers:
            self._tokenizer.decode(answer)
        return sum(map(len, answers))
