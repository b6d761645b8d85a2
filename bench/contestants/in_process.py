"""Headstart without HTTP: prompting, database, transport, runtime and engine, put together by the code of `serve`.

A request takes the steps that the API takes, from its text to its text (api/dialects/gemini/generate.py, api/builds.py).
The model's end tokens are taken out of this process's own prompt format, so that every answer has the length asked for.
"""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from sqlalchemy.orm import Session

from api.pools import Pools
from bench.contestant import Asked, Description, FannedOut, Kept
from bench.contestants.agreement import AGREEMENT_TOKENS, agreement_with_float32
from bench.memory import growth_bytes
from bench.serve_settings import changed_settings, deciding_settings
from bench.versions import versions
from bench.workload import Document, Prompt, Workload
from caching import leases, lifecycle
from cli.embedded import embedded
from core.clock import instant
from core.ids import new_request_id
from core.messages import BuildCache, BuiltEvent, DropCache, FinishedEvent, Generate, TokensEvent
from core.sampling import Sampling
from core.settings import load_settings
from models.api_key import list_api_keys
from models.cache import Cache
from models.project import list_projects
from prompting.messages import Message, to_json
from workers.engine.loading.progress import silent
from workers.engine.loading.source import model_folder

_GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
_TTL = timedelta(hours=1)
_LIBRARIES = ("headstart-server", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class _Caller:
    project_id: str
    key_id: str


class InProcess:
    def __init__(self) -> None:
        self._open = ExitStack()
        folder = Path(self._open.enter_context(TemporaryDirectory(prefix="headstart-bench-")))
        self._settings = load_settings(data_dir=folder / "data")
        self._server = self._open.enter_context(embedded(self._settings, silent))
        self._server.served_model.format.eos_token_ids = ()
        self._pools = Pools(self._server.database, self._settings.database_pool_size)
        self._caller = self._find_caller()
        self._runner = self._open.enter_context(asyncio.Runner())
        self._cache_id: str | None = None

    def describe(self) -> Description:
        config = self._server.engine.config
        settings = deciding_settings(self._settings) | {
            "dtype": str(config.dtype).removeprefix("torch."),
            "device": str(config.device),
            "threads": torch.get_num_threads(),
            "arena_bytes": config.arena_bytes,
        }
        if config.dtype != torch.float32:
            settings["agreement_with_float32"] = self._agreement()
        return Description(versions(*_LIBRARIES), settings, changed_settings(self._settings))

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
        started = time.perf_counter()
        growth = growth_bytes(lambda: answers.extend(self._runner.run(all_of_them())))
        last = max(times[-1] for times in answers)
        counted = self._server.engine.counters.peak_request_bytes
        return FannedOut(last - started, sum(map(len, answers)), growth, counted)

    def close(self) -> None:
        self._open.close()

    async def _create(self, text: str) -> str:
        server, messages = self._server, [Message("user", text)]
        now = await self._pools.read(lambda session: instant(session, server.clock))
        prefix = await self._pools.compute(lambda: server.served_model.format.prefix(messages, at=now))

        def create(session: Session) -> Cache:
            return lifecycle.create(
                session,
                project_id=self._caller.project_id,
                key_id=self._caller.key_id,
                model=server.served_model.name,
                fingerprint=server.served_model.fingerprint,
                display_name="",
                messages=to_json(messages),
                prefix_text=prefix.text,
                token_ids=prefix.token_ids,
                expire_at=now + _TTL,
                incarnation=server.transport.incarnation,
                now=now,
                max_caches=self._settings.max_caches_per_project,
            )

        cache = await self._pools.write(create)
        async with server.transport.open(cache.id) as channel:
            server.transport.send(BuildCache(cache.id, cache.fencing_token))
            event = await channel.next()
        assert isinstance(event, BuiltEvent), f"the cache was not built: {event}"
        return cache.id

    async def _answer(self, question: str, output_tokens: int) -> list[float]:
        """When each token's text was there; the tokens of one event came together."""
        request_id = new_request_id()
        cache = await self._pools.read(self._find_cache)
        token_ids = await self._pools.compute(lambda: self._suffix(cache, question))
        await self._pools.write(lambda session: self._reserve(session, cache, request_id, len(token_ids)))
        times: list[float] = []
        async with self._server.transport.open(request_id) as channel:
            self._server.transport.send(
                Generate(request_id, 1, cache.id, tuple(token_ids), _GREEDY, output_tokens, ())
            )
            while isinstance(event := await channel.next(), TokensEvent):
                times += [time.perf_counter()] * len(event.token_ids)
        if not isinstance(event, FinishedEvent) or len(times) != output_tokens:
            raise RuntimeError(f"{len(times)} of {output_tokens} tokens came, then {event}")
        return times

    def _agreement(self) -> float:
        served = self._server.served_model
        text = Workload(served.format).document(AGREEMENT_TOKENS).prefix_text
        folder = model_folder(self._settings, silent)
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

    def _reserve(self, session: Session, cache: Cache, request_id: str, token_count: int) -> None:
        leases.acquire(
            session,
            self._server.clock,
            project_id=self._caller.project_id,
            key_id=self._caller.key_id,
            cache_id=cache.id,
            model=self._server.served_model.name,
            fingerprint=self._server.served_model.fingerprint,
            request_id=request_id,
            prompt_tokens=cache.token_count + token_count,
            cache_tokens=cache.token_count,
            incarnation=self._server.transport.incarnation,
        )

    def _delete(self, cache_id: str) -> None:
        server = self._server
        with server.database.write() as session:
            lifecycle.delete(session, server.clock, self._caller.project_id, cache_id)
        server.transport.send(DropCache(cache_id))

    def _find_caller(self) -> _Caller:
        """The project and the key that a first start makes."""
        with self._server.database.read() as session:
            project = list_projects(session)[0]
            return _Caller(project.id, list_api_keys(session, project.id)[0].id)
