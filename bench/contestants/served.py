"""Requests made and answered by the code that the API's handlers call (api/builds.py, api/generations.py), without HTTP."""

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import NoReturn

from sqlalchemy.orm import Session

from api.auth import ProjectCaller
from api.builds import Draft, create_cache
from api.generations import Generation, running
from api.patience import Patience
from api.state import ApiState
from bench.contestants.streams import instants
from caching import lifecycle
from cli.embedded import Embedded
from core.clock import instant
from core.ids import new_request_id
from core.messages import DropCache, TokensEvent
from core.sampling import Sampling
from models.api_key import list_api_keys
from models.cache import Cache, list_live_caches
from models.project import list_projects
from prompting.messages import Message

_GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
_TTL = timedelta(hours=1)
_MOST_CACHES = 1000


class Served:
    """The caches of the project that a first start makes, known by the text of their only message."""

    def __init__(self, server: Embedded, state: ApiState) -> None:
        self._server = server
        self._state = state
        with server.database.read() as session:
            self._caller = self._find_caller(session)
            self.cache_ids = self._find_cache_ids(session)

    async def create(self, text: str) -> None:
        state, messages = self._state, (Message("user", text),)
        now = await state.pools.read(lambda session: instant(session, state.clock))
        prefix = await state.pools.compute(lambda: state.served_model.format.prefix(messages, at=now))
        draft = Draft("", messages, prefix, created_at=now, expire_at=now + _TTL)
        async with self._patience() as patience:
            self.cache_ids[text] = (await create_cache(state, self._caller, draft, patience)).id

    def delete(self, text: str) -> None:
        server, cache_id = self._server, self.cache_ids.pop(text)
        with server.database.write() as session:
            lifecycle.delete(session, server.clock, self._caller.project_id, cache_id)
        server.transport.send(DropCache(cache_id))

    async def tokens(self, cache_id: str, question: str, output_tokens: int) -> AsyncGenerator[float, None]:
        """When each token's text was there. Closed early, it hangs up.

        A token without text, as the model's special ones, comes with the next that has some: they share the time since the one before.
        """
        state = self._state
        cache = await state.pools.read(lambda session: self._find_cache(session, cache_id))
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
        count, before = 0, None
        async with self._patience() as patience, running(state, self._caller, generation, patience) as run:
            while isinstance(event := await run.next(), TokensEvent):
                now = time.perf_counter()
                for moment in instants(before, now, len(event.token_ids)):
                    yield moment
                count, before = count + len(event.token_ids), now
        if count != output_tokens:
            raise RuntimeError(f"{count} of {output_tokens} tokens came, then {event}")

    async def answer(self, cache_id: str, question: str, output_tokens: int) -> list[float]:
        """The instants of all its tokens."""
        return [now async for now in self.tokens(cache_id, question, output_tokens)]

    def _patience(self) -> Patience:
        return Patience(_never, time.monotonic(), self._state.settings.request_timeout_seconds)

    def _find_cache(self, session: Session, cache_id: str) -> Cache:
        now = instant(session, self._server.clock)
        return lifecycle.get_with_content(session, self._caller.project_id, cache_id, now)

    def _suffix(self, cache: Cache, question: str) -> list[int]:
        assert cache.prefix_text is not None, "a usable cache has its content"
        cached, new = _messages(cache), [Message("user", question)]
        return self._server.served_model.format.suffix(cache.prefix_text, cached, new, at=cache.created_at)

    def _find_caller(self, session: Session) -> ProjectCaller:
        project = list_projects(session)[0]
        key = list_api_keys(session, project.id)[0]
        return ProjectCaller(key.id, project.id, instant(session, self._server.clock))

    def _find_cache_ids(self, session: Session) -> dict[str, str]:
        """What an earlier process has left in this data folder."""
        now = instant(session, self._server.clock)
        live = list_live_caches(session, self._caller.project_id, now, _MOST_CACHES, None)
        found = [self._find_cache(session, cache.id) for cache in live]
        return {_messages(cache)[0].text: cache.id for cache in found}


def _messages(cache: Cache) -> list[Message]:
    assert cache.messages is not None, "a usable cache has its content"
    return [Message.from_json(each) for each in cache.messages]


async def _never() -> NoReturn:
    """Nobody hangs up here."""
    await asyncio.Event().wait()
    raise AssertionError
