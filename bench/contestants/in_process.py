"""Headstart without HTTP: prompting, database, transport, runtime and engine, put together by the code of `serve`.

The model's end tokens are taken out of this process's own prompt format, so that every answer has the length asked for.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.contestant import Asked, Description, FannedOut, Held, Kept, KeptBeside
from bench.contestants.agreement import AGREEMENT_TOKENS, agreement_with_float32
from bench.contestants.served import Served
from bench.contestants.streams import gaps, going_on
from bench.memory import growth_bytes
from bench.serve_settings import changed_settings, deciding_settings
from bench.versions import versions
from bench.workload import Document, Prompt, Workload
from cli.embedded import embedded
from core.settings import load_settings
from workers.engine.loading.progress import silent
from workers.engine.loading.source import model_folder

_LIBRARIES = ("headstart-server", "torch", "transformers")


class InProcess:
    """home: where its data lie, and stay; without one they end with it."""

    def __init__(self, home: Path | None = None) -> None:
        self._open = ExitStack()
        folder = home or Path(self._open.enter_context(TemporaryDirectory(prefix="headstart-bench-")))
        settings = load_settings(data_dir=folder / "data")
        self._server = server = self._open.enter_context(embedded(settings, silent))
        server.served_model.format.eos_token_ids = ()
        self._state = server.api_state(settings, server.has_engine)
        self._served = Served(server, self._state)
        self._runner = self._open.enter_context(asyncio.Runner())

    def describe(self) -> Description:
        config = self._server.engine.config
        settings = deciding_settings(self._state.settings) | {
            "dtype": str(config.dtype).removeprefix("torch."),
            "device": str(config.device),
            "threads": torch.get_num_threads(),
            "arena_bytes": config.arena_bytes,
        }
        if config.dtype != torch.float32:
            settings["agreement_with_float32"] = self._agreement()
        return Description(versions(*_LIBRARIES), settings, changed_settings(self._state.settings))

    def keep(self, document: Document) -> Kept:
        for text in list(self._served.cache_ids):
            self._served.delete(text)
        return self.keep_too(document)

    def keep_too(self, document: Document) -> Kept:
        started = time.perf_counter()
        self._runner.run(self._served.create(document.text))
        return Kept(time.perf_counter() - started)

    def keep_beside(
        self, document: Document, prompts: list[Prompt], streams: int, output_tokens: int
    ) -> KeptBeside:
        return self._runner.run(self._keep_beside(document, prompts, streams, output_tokens))

    def forget(self, document: Document) -> None:
        self._served.delete(document.text)

    def held(self) -> Held:
        engine = self._server.engine
        kv_bytes = engine.call(lambda segments: segments.arena.pool.used_count * segments.arena.block_bytes)
        return Held(kv_bytes.result(), engine.kv_bytes_per_token)

    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        cache_id = self._cache_id(prompt)
        started = time.perf_counter()
        times = self._runner.run(self._served.answer(cache_id, prompt.question, output_tokens))
        return Asked.from_times(started, times)

    def fan_out(self, prompts: list[Prompt], output_tokens: int) -> FannedOut:
        answers: list[list[float]] = []
        engine = self._server.engine
        engine.call(lambda _: engine.counters.forget_peaks()).result()
        started = time.perf_counter()
        growth = growth_bytes(
            lambda: answers.extend(self._runner.run(self._answer_all(prompts, output_tokens)))
        )
        last = max(times[-1] for times in answers)
        counted = engine.counters.peak_request_bytes
        return FannedOut(last - started, sum(map(len, answers)), growth, counted)

    def close(self) -> None:
        self._open.close()

    async def _answer_all(self, prompts: list[Prompt], output_tokens: int) -> list[list[float]]:
        answers = (
            self._served.answer(self._cache_id(prompt), prompt.question, output_tokens) for prompt in prompts
        )
        return await asyncio.gather(*answers)

    async def _keep_beside(
        self, document: Document, prompts: list[Prompt], streams: int, output_tokens: int
    ) -> KeptBeside:
        def answering(prompt: Prompt) -> AsyncGenerator[float, None]:
            return self._served.tokens(self._cache_id(prompt), prompt.question, output_tokens)

        quiet = await self._answer_all(prompts[:streams], output_tokens)
        async with going_on(answering, cycle(prompts[streams:]), streams) as answers:
            started = time.perf_counter()
            await self._served.create(document.text)
            ended = time.perf_counter()
        return KeptBeside(
            ended - started, gaps(quiet, 0.0, time.perf_counter()), gaps(answers, started, ended)
        )

    def _cache_id(self, prompt: Prompt) -> str:
        """Of the document that the prompt is about."""
        return next(cache_id for text, cache_id in self._served.cache_ids.items() if text in prompt.text)

    def _agreement(self) -> float:
        served = self._server.served_model
        text = Workload(served.format).document(AGREEMENT_TOKENS).prefix_text
        folder = model_folder(self._state.settings, silent)
        return agreement_with_float32(self._server.engine.model, folder, served.format.encode(text))
