"""Headstart as a customer meets it: `headstart serve` in a process of its own, and the stock google-genai client."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from google import genai
from google.genai import types

from bench.contestant import Asked, Description, FannedOut, Kept
from bench.serve_settings import changed_settings
from bench.versions import versions
from bench.workload import Document, Prompt
from cli.demo.client import served_model
from cli.demo.server import running_server
from core.settings import load_settings


class OverHttp:
    def __init__(self) -> None:
        self._open = ExitStack()
        folder = Path(self._open.enter_context(TemporaryDirectory(prefix="headstart-bench-")))
        server = self._open.enter_context(running_server(folder))
        self._client = genai.Client(
            api_key=server.project_key, http_options=types.HttpOptions(base_url=server.address)
        )
        self._model = served_model(self._client)
        self._runner = self._open.enter_context(asyncio.Runner())
        self._cache_name: str | None = None

    def describe(self) -> Description:
        """The server chooses as the one in process does, which names what was chosen."""
        return Description(
            versions("headstart-server", "google-genai"), {}, changed_settings(load_settings())
        )

    def keep(self, document: Document) -> Kept:
        if self._cache_name is not None:
            self._client.caches.delete(name=self._cache_name)
        started = time.perf_counter()
        cache = self._client.caches.create(
            model=self._model,
            config=types.CreateCachedContentConfig(contents=[_user_turn(document.text)], ttl="3600s"),
        )
        self._cache_name = cache.name
        return Kept(time.perf_counter() - started)

    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        """An answer may end before it has all tokens: only its first text is measured."""
        started = time.perf_counter()
        first = None
        for chunk in self._client.models.generate_content_stream(
            model=self._model, contents=prompt.question, config=self._config(output_tokens)
        ):
            if first is None and chunk.text:
                first = time.perf_counter()
        if first is None:
            raise RuntimeError(f"the answer to {prompt.question!r} has no text")
        return Asked(first - started, None)

    def fan_out(self, prompts: list[Prompt], output_tokens: int) -> FannedOut:
        """Through the asynchronous client. An answer may end before it has all tokens: those that came are counted."""

        async def all_of_them() -> list[tuple[float, int]]:
            return await asyncio.gather(*(self._answer(prompt.question, output_tokens) for prompt in prompts))

        started = time.perf_counter()
        answers = self._runner.run(all_of_them())
        return FannedOut(max(at for at, _ in answers) - started, sum(tokens for _, tokens in answers))

    async def _answer(self, question: str, output_tokens: int) -> tuple[float, int]:
        """When the last piece of text was there, and how many tokens the answer has."""
        last, tokens = time.perf_counter(), 0
        async for chunk in await self._client.aio.models.generate_content_stream(
            model=self._model, contents=question, config=self._config(output_tokens)
        ):
            if chunk.text:
                last = time.perf_counter()
            if chunk.usage_metadata is not None:
                tokens = chunk.usage_metadata.candidates_token_count or tokens
        return last, tokens

    def _config(self, output_tokens: int) -> types.GenerateContentConfig:
        return types.GenerateContentConfig(
            temperature=0, max_output_tokens=output_tokens, cached_content=self._cache_name
        )

    def close(self) -> None:
        self._open.close()


def _user_turn(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])
