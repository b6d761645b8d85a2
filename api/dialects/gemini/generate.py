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
from api.dialects.gemini.answers import Answer
from api.dialects.gemini.prompts import Asked, check_size, refuse_conflict, resolve_asked
from api.dialects.gemini.query import read_query
from api.dialects.gemini.rejections import parse
from api.dialects.gemini.requests import GenerateContentRequest, GenerationConfig
from api.dialects.gemini.responses import ok
from api.generations import Generation, Running, running
from api.patience import Patience
from api.reuse import read_reuse
from api.state import ApiState, api_state, request_id
from api.streaming import JSON_ARRAY, SERVER_SENT_EVENTS, JsonStream, Values
from core.errors import InvalidArgument
from core.sampling import Sampling
from prompting.served_model import ServedModel

router = APIRouter()


@router.post("/models/{model:path}:generateContent")
async def generate_content(request: Request, caller: GenerateCaller, model: str) -> Response:
    read_query(request)
    state = api_state(request)
    generation = await _prepare(state, request, caller, model, "generateContent")
    answer = Answer(generation, state.served_model)
    async with _patience(state, request) as patience, running(state, caller, generation, patience) as run:
        while not answer.is_whole:
            answer.take(await run.next())
    return ok(answer.tell(answer.candidates))


@router.post("/models/{model:path}:streamGenerateContent")
async def stream_generate_content(request: Request, caller: GenerateCaller, model: str) -> Response:
    read_query(request, formats=frozenset({"json", "sse"}))
    state = api_state(request)
    generation = await _prepare(state, request, caller, model, "streamGenerateContent")

    @asynccontextmanager
    async def source() -> AsyncIterator[Values]:
        async with _patience(state, request) as patience, running(state, caller, generation, patience) as run:
            yield _pieces(run, Answer(generation, state.served_model))

    framing = SERVER_SENT_EVENTS if request.query_params.get("alt") == "sse" else JSON_ARRAY
    return JsonStream(source, framing, state.settings.keep_alive_seconds)


async def _prepare(
    state: ApiState, request: Request, caller: ProjectCaller, model: str, method: str
) -> Generation:
    """Read and check everything; tokenise what is new. Nothing is written yet."""
    reuses_kv = read_reuse(request)
    body = await read_json(request)
    refuse_conflict(body)
    wire = parse(GenerateContentRequest, body)
    config = wire.generation_config or GenerationConfig()
    top_logprobs = _top_logprobs(config)
    _check_candidates(config, state.settings.max_running_requests)
    asked = await resolve_asked(state, request, caller, model, method, wire)
    if asked.messages[-1].role == "assistant":
        raise InvalidArgument("Requests ending with a model turn are not supported.", field="contents")
    check_size(state, asked.cached_tokens + state.served_model.format.minimum_tokens(asked.messages))
    token_ids = await state.pools.compute(lambda: _tokenise(state.served_model, asked))
    prompt_tokens = asked.cached_tokens + len(token_ids)
    check_size(state, prompt_tokens)
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
        candidate_count=config.candidate_count or 1,
        top_logprobs=top_logprobs,
        reuses_kv=reuses_kv,
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
        seed=secrets.randbits(62) if config.seed is None else config.seed,
        presence_penalty=config.presence_penalty or 0.0,
        frequency_penalty=config.frequency_penalty or 0.0,
    )


def _check_candidates(config: GenerationConfig, most: int) -> None:
    """More than are let run at once could never begin: they begin together."""
    if (config.candidate_count or 1) > most:
        raise InvalidArgument(
            f"candidateCount is {config.candidate_count}, and this server runs {most} at once. Ask for fewer.",
            field="generation_config.candidate_count",
        )


def _top_logprobs(config: GenerationConfig) -> int | None:
    if config.response_logprobs:
        return config.logprobs or 0
    if config.logprobs is not None:
        raise InvalidArgument(
            "logprobs says how many there should be; set responseLogprobs to true to have them.",
            field="generation_config.logprobs",
        )
    return None


def _patience(state: ApiState, request: Request) -> Patience:
    return Patience.of(request, state.settings.request_timeout_seconds)


async def _pieces(run: Running, answer: Answer) -> AsyncIterator[dict[str, Any]]:
    while not answer.is_whole:
        if told := answer.take(await run.next()):
            yield answer.tell(told)
