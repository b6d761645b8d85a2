"""countTokens: what a request's contents cost before it is asked. The four tokens or so that open an answer count
only in generateContent."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.auth import GenerateCaller
from api.bodies import read_json
from api.dialects.gemini.prompts import Asked, check_size, refuse_conflict, resolve_asked
from api.dialects.gemini.query import read_query
from api.dialects.gemini.rejections import parse
from api.dialects.gemini.requests import CountTokensRequest, GenerateContentRequest
from api.dialects.gemini.responses import Usage, ok, token_details
from api.state import ApiState, api_state
from core.errors import InvalidArgument

router = APIRouter()

_WRAPPED = "generate_content_request"


@router.post("/models/{model:path}:countTokens")
async def count_tokens(request: Request, caller: GenerateCaller, model: str) -> Response:
    read_query(request)
    state = api_state(request)
    given = await read_json(request)
    wrapped = given.get("generateContentRequest") or given.get(_WRAPPED)
    if isinstance(wrapped, dict):
        refuse_conflict(wrapped, _WRAPPED)
    wire = parse(CountTokensRequest, given)
    root = "" if wire.generate_content_request is None else _WRAPPED
    asked = await resolve_asked(state, request, caller, model, "countTokens", _whole(wire), root)
    check_size(state, asked.cached_tokens + state.served_model.format.minimum_tokens(asked.messages))
    total = await state.pools.compute(lambda: _count(state, asked))
    usage = Usage(total, asked.cached_tokens)
    body: dict[str, Any] = {"totalTokens": total}
    if asked.cached_tokens:
        body["cachedContentTokenCount"] = asked.cached_tokens
    return ok(body | token_details(usage))


def _whole(wire: CountTokensRequest) -> GenerateContentRequest:
    """The request that is counted, however it was wrapped."""
    if wire.generate_content_request is None:
        return GenerateContentRequest(model=wire.model, contents=wire.contents)
    if wire.contents:
        raise InvalidArgument("Set either contents or generateContentRequest, not both.", field=_WRAPPED)
    return wire.generate_content_request


def _count(state: ApiState, asked: Asked) -> int:
    prompts, prefix = state.served_model.format, asked.prefix
    if prefix is None:
        return prompts.count(asked.messages)
    return prompts.count([*prefix.messages, *asked.messages], at=prefix.created_at)
