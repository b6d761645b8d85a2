"""One generation, from its reserved usage row to its last event; knows no dialect and no text before tokens."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from api.auth import ProjectCaller
from api.patience import Patience
from api.state import ApiState
from billing import usage
from caching import leases
from core.clock import instant
from core.errors import AppError, Internal
from core.messages import FailedEvent, FinishedEvent, Generate, TokensEvent
from core.sampling import Sampling
from core.transport import Channel
from models.project import get_project

log = logging.getLogger(__name__)

_ATTEMPT = 1


@dataclass(frozen=True, slots=True)
class Generation:
    """token_ids: what comes after the cache, or the whole prompt. cached_tokens: of the cache, 0 without one.

    reuses_kv: whether the request itself lets automatic KV be reused; its project and the server have a say too.
    """

    request_id: str
    cache_id: str | None
    cached_tokens: int
    token_ids: tuple[int, ...]
    sampling: Sampling
    max_output_tokens: int
    stop_sequences: tuple[str, ...]
    candidate_count: int = 1
    top_logprobs: int | None = None
    reuses_kv: bool = True

    @property
    def prompt_tokens(self) -> int:
        return self.cached_tokens + len(self.token_ids)


class Running:
    """A generation that an engine has been given."""

    def __init__(self, channel: Channel, patience: Patience) -> None:
        self._channel = channel
        self._patience = patience
        self.is_over = False

    async def next(self) -> TokensEvent | FinishedEvent:
        """Wait for the next event; raise the error of a generation that failed, or of patience that ended."""
        event = await self._patience.wait(self._channel.next())
        if isinstance(event, TokensEvent):
            return event
        self.is_over = True
        if isinstance(event, FinishedEvent):
            return event
        raise (
            event.error
            if isinstance(event, FailedEvent)
            else Internal("A build ended where text was awaited.")
        )


@asynccontextmanager
async def running(
    state: ApiState, caller: ProjectCaller, generation: Generation, patience: Patience
) -> AsyncIterator[Running]:
    """Lease, reserve, send; whatever leaves before the end stops the engine within one step.

    Once sent, the usage row is the worker's to settle: it alone knows what was produced.
    """
    async with state.transport.open(generation.request_id) as channel:
        await _reserve_and_send(state, caller, generation, patience)
        run = Running(channel, patience)
        try:
            yield run
        finally:
            if not run.is_over:
                state.transport.cancel(generation.request_id)


async def _reserve_and_send(
    state: ApiState, caller: ProjectCaller, generation: Generation, patience: Patience
) -> None:
    reuses_kv = await state.pools.write(lambda session: _reserve(session, state, caller, generation))
    try:
        patience.check()
        state.transport.send(
            Generate(
                request_id=generation.request_id,
                attempt=_ATTEMPT,
                project_id=caller.project_id,
                cache_id=generation.cache_id,
                token_ids=generation.token_ids,
                sampling=generation.sampling,
                max_output_tokens=generation.max_output_tokens,
                stop_sequences=generation.stop_sequences,
                candidate_count=generation.candidate_count,
                top_logprobs=generation.top_logprobs,
                reuses_kv=reuses_kv,
            )
        )
    except AppError as error:
        reason = error.code
        await state.pools.write(
            lambda session: usage.void(
                session, generation.request_id, _ATTEMPT, instant(session, state.clock), reason
            )
        )
        raise


def _reserve(session: Session, state: ApiState, caller: ProjectCaller, generation: Generation) -> bool:
    """Reserve the usage, and with it the lease. Gives whether automatic KV may be reused: nobody concerned says no."""
    leases.acquire(
        session,
        state.clock,
        project_id=caller.project_id,
        key_id=caller.key_id,
        cache_id=generation.cache_id,
        model=state.served_model.name,
        fingerprint=state.served_model.fingerprint,
        request_id=generation.request_id,
        prompt_tokens=generation.prompt_tokens,
        cache_tokens=generation.cached_tokens,
        most_output_tokens=generation.max_output_tokens * generation.candidate_count,
        incarnation=state.transport.incarnation,
    )
    return (
        state.settings.automatic_reuse
        and generation.reuses_kv
        and get_project(session, caller.project_id).reuses_kv
    )
