"""generateContent and streamGenerateContent."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.auth import GenerateCaller, ProjectCaller
from api.bodies import read_json
from api.dialects.gemini.prompts import Asked, check_size, resolve_asked
from api.dialects.gemini.query import read_query
from api.dialects.gemini.rejections import parse
from api.dialects.gemini.requests import GenerateContentRequest, GenerationConfig
from api.dialects.gemini.responses import Chunk, Usage, answer, ok
from api.generations import Generation, Running, running
from api.patience import Patience
from api.state import ApiState, api_state, request_id
from api.streaming import JSON_ARRAY, SERVER_SENT_EVENTS, JsonStream, Values
from core.errors import InvalidArgument
from core.messages import FinishReason, TokensEvent
from core.sampling import Sampling
from prompting.served_model import ServedModel

router = APIRouter()


@router.post("/models/{model:path}:generateContent")
async def generate_content(request: Request, caller: GenerateCaller, model: str) -> Response:
    read_query(request)
    state = api_state(request)
    generation = await _prepare(state, request, caller, model, "generateContent")
    text, reason, usage = "", None, Usage(0, 0)
    async with _patience(state, request) as patience, running(state, caller, generation, patience) as run:
        async for chunk in _chunks(run, generation, state.served_model.name):
            text, reason, usage = text + chunk.text, chunk.finish_reason, chunk.usage
    return ok(answer(Chunk(generation.request_id, state.served_model.name, text, reason, usage)))


@router.post("/models/{model:path}:streamGenerateContent")
async def stream_generate_content(request: Request, caller: GenerateCaller, model: str) -> Response:
    read_query(request, formats=frozenset({"json", "sse"}))
    state = api_state(request)
    generation = await _prepare(state, request, caller, model, "streamGenerateContent")

    @asynccontextmanager
    async def source() -> AsyncIterator[Values]:
        async with _patience(state, request) as patience, running(state, caller, generation, patience) as run:
            yield _answers(run, generation, state.served_model.name)

    return JsonStream(source, SERVER_SENT_EVENTS if request.query_params.get("alt") == "sse" else JSON_ARRAY)


async def _prepare(
    state: ApiState, request: Request, caller: ProjectCaller, model: str, method: str
) -> Generation:
    """Read and check everything; tokenise what is new. Nothing is written yet."""
    wire = parse(GenerateContentRequest, await read_json(request))
    asked = await resolve_asked(state, request, caller, model, method, wire)
    if asked.messages[-1].role == "assistant":
        raise InvalidArgument("Requests ending with a model turn are not supported.", field="contents")
    check_size(state, asked.cached_tokens + state.served_model.format.minimum_tokens(asked.messages))
    token_ids = await state.pools.compute(lambda: _tokenise(state.served_model, asked))
    prompt_tokens = asked.cached_tokens + len(token_ids)
    check_size(state, prompt_tokens)
    config = wire.generation_config or GenerationConfig()
    served = state.served_model
    room = served.context_tokens - prompt_tokens
    return Generation(
        request_id=request_id(request),
        cache_id=None if asked.prefix is None else asked.prefix.cache_id,
        cached_tokens=asked.cached_tokens,
        token_ids=tuple(token_ids),
        sampling=_sampling(config, served),
        max_output_tokens=min(
            config.max_output_tokens or served.output_token_limit, served.output_token_limit, room
        ),
        stop_sequences=tuple(config.stop_sequences or ()),
    )


def _tokenise(served: ServedModel, asked: Asked) -> list[int]:
    prefix = asked.prefix
    if prefix is None:
        return served.format.prompt(asked.messages).token_ids
    return served.format.suffix(prefix.text, prefix.messages, asked.messages, at=prefix.created_at)


def _sampling(config: GenerationConfig, served: ServedModel) -> Sampling:
    """The model's own defaults, and a seed of ours where none was asked for."""
    return Sampling(
        temperature=served.temperature if config.temperature is None else config.temperature,
        top_p=served.top_p if config.top_p is None else config.top_p,
        top_k=served.top_k if config.top_k is None else config.top_k,
        seed=secrets.randbits(63) if config.seed is None else config.seed,
    )


def _patience(state: ApiState, request: Request) -> Patience:
    return Patience(request, state.settings.request_timeout_seconds)


async def _chunks(run: Running, generation: Generation, model_name: str) -> AsyncIterator[Chunk]:
    """Relay pieces of text, with the counts so far; the last chunk has the reason and no text."""
    output_tokens = 0

    def chunk(text: str, reason: FinishReason | None) -> Chunk:
        usage = Usage(generation.prompt_tokens, generation.cached_tokens, output_tokens)
        return Chunk(generation.request_id, model_name, text, reason, usage)

    while isinstance(event := await run.next(), TokensEvent):
        output_tokens += len(event.token_ids)
        if event.text:
            yield chunk(event.text, None)
    yield chunk("", event.reason)


async def _answers(run: Running, generation: Generation, model_name: str) -> AsyncIterator[dict[str, Any]]:
    async for chunk in _chunks(run, generation, model_name):
        yield answer(chunk)
