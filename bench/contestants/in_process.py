"""Headstart without HTTP: prompting, database, transport, runtime and engine, put together by the code of `serve`.

A request is made and answered by the code that the API's handlers call (api/builds.py, api/generations.py). The model's end
tokens are taken out of this process's own prompt format, so that every answer has the length asked for.
"""

import asyncio
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import torch
from sqlalchemy.orm import Session

from api.auth import ProjectCaller
from api.builds import Draft, create_cache
from api.generations import Generation, running
from api.patience import Patience
from bench.contestant import Asked, Description, FannedOut, Kept
from bench.contestants.agreement import AGREEMENT_TOKENS, agreement_with_float32
from bench.memory import growth_bytes
from bench.serve_settings import changed_settings, deciding_settings
from bench.versions import versions
from bench.workload import Document, Prompt, Workload
from caching import lifecycle
from cli.embedded import embedded
from core.clock import instant
from core.ids import new_request_id
from core.messages import DropCache, TokensEvent
from core.sampling import Sampling
from core.settings import load_settings
from models.api_key import list_api_keys
from models.cache import Cache
from models.project import list_projects
from prompting.messages import Message
from workers.engine.loading.progress import silent
from workers.engine.loading.source import model_folder

_GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
_TTL = timedelta(hours=1)
_LIBRARIES = ("headstart-server", "torch", "transformers")


class InProcess:
    def __init__(self) -> None:
        self._open = ExitStack()
        folder = Path(self._open.enter_context(TemporaryDirectory(prefix="headstart-bench-")))
        settings = load_settings(data_dir=folder / "data")
        self._server = server = self._open.enter_context(embedded(settings, silent))
        server.served_model.format.eos_token_ids = ()
        self._state = server.api_state(settings, server.has_engine)
        self._caller = self._find_caller()
        self._runner = self._open.enter_context(asyncio.Runner())
        self._cache_id: str | None = None

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
        if self._cache_id is not None:
            self._delete(self._cache_id)
        started = time.perf_counter()
        self._cache_id = self._runner.run(self._create(document.text))
        return Kept(time.perf_counter() - started)

    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        started = time.perf_counter()
        times = self._runner.run(self._answer(prompt.question, output_tokens))
        return Asked.from_times(started, times)

    def fan_out(self, prompts: list[Prompt], output_tokens: int) -> FannedOut:
        async def all_of_them() -> list[list[float]]:
            answers = (self._answer(prompt.question, output_tokens) for prompt in prompts)
            return await asyncio.gather(*answers)

        answers: list[list[float]] = []
        engine = self._server.engine
        engine.call(lambda _: engine.counters.forget_peaks()).result()
        started = time.perf_counter()
        growth = growth_bytes(lambda: answers.extend(self._runner.run(all_of_them())))
        last = max(times[-1] for times in answers)
        counted = engine.counters.peak_request_bytes
        return FannedOut(last - started, sum(map(len, answers)), growth, counted)

    def close(self) -> None:
        self._open.close()

    async def _create(self, text: str) -> str:
        state, messages = self._state, (Message("user", text),)
        now = await state.pools.read(lambda session: instant(session, state.clock))
        prefix = await state.pools.compute(lambda: state.served_model.format.prefix(messages, at=now))
        draft = Draft("", messages, prefix, created_at=now, expire_at=now + _TTL)
        async with self._patience() as patience:
            return (await create_cache(state, self._caller, draft, patience)).id

    async def _answer(self, question: str, output_tokens: int) -> list[float]:
        """When each token's text was there; the tokens of one event came together."""
        state = self._state
        cache = await state.pools.read(self._find_cache)
        token_ids = await state.pools.compute(lambda: self._suffix(cache, question))
        generation = Generation(
            request_id=new_request_id(),
            cache_id=cache.id,
            cached_tokens=cache.token_count,
            token_ids=tuple(token_ids),
            sampling=_GREEDY,
            max_output_tokens=output_tokens,
            stop_sequences=(),
        )
        times: list[float] = []
        async with self._patience() as patience, running(state, self._caller, generation, patience) as run:
            while isinstance(event := await run.next(), TokensEvent):
                times += [time.perf_counter()] * len(event.token_ids)
        if len(times) != output_tokens:
            raise RuntimeError(f"{len(times)} of {output_tokens} tokens came, then {event}")
        return times

    def _patience(self) -> Patience:
        return Patience(_never, time.monotonic(), self._state.settings.request_timeout_seconds)

    def _agreement(self) -> float:
        served = self._server.served_model
        text = Workload(served.format).document(AGREEMENT_TOKENS).prefix_text
        folder = model_folder(self._state.settings, silent)
        return agreement_with_float32(self._server.engine.model, folder, served.format.encode(text))

    def _find_cache(self, session: Session) -> Cache:
        assert self._cache_id is not None, "a document is kept before anything is asked"
        now = instant(session, self._server.clock)
        return lifecycle.get_with_content(session, self._caller.project_id, self._cache_id, now)

    def _suffix(self, cache: Cache, question: str) -> list[int]:
        assert cache.prefix_text is not None, "a usable cache has its content"
        assert cache.messages is not None, "a usable cache has its content"
        cached = [Message.from_json(each) for each in cache.messages]
        new = [Message("user", question)]
        return self._server.served_model.format.suffix(cache.prefix_text, cached, new, at=cache.created_at)

    def _delete(self, cache_id: str) -> None:
        server = self._server
        with server.database.write() as session:
            lifecycle.delete(session, server.clock, self._caller.project_id, cache_id)
        server.transport.send(DropCache(cache_id))

    def _find_caller(self) -> ProjectCaller:
        """The project and the key that a first start makes."""
        with self._server.database.read() as session:
            project = list_projects(session)[0]
            key = list_api_keys(session, project.id)[0]
            return ProjectCaller(key.id, project.id, instant(session, self._server.clock))


async def _never() -> NoReturn:
    """Nobody hangs up here."""
    await asyncio.Event().wait()
    raise AssertionError
