"""/headstart/v1/billing/quote: what a cache would cost, from the body of the create that would make it."""

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from api.auth import AnyCaller, Caller, check_scope
from api.bodies import read_json
from api.dialects.gemini.drafts import check_token_count, read_draft, read_terms
from api.dialects.gemini.fields import Int32
from api.dialects.gemini.prompts import input_too_large
from api.dialects.gemini.rejections import parse
from api.dialects.gemini.requests import MOST_CANDIDATES, CachedContent
from api.json_text import dump
from api.native.asking import asked_project
from api.native.queries import read_query
from api.state import ApiState, api_state
from billing.prices import load_prices
from billing.quote import Plan, quote
from billing.quote_json import quote_json
from billing.timelines import Prices
from core.errors import InputTooLarge, InvalidArgument
from models.api_key import Scope
from prompting.served_model import ServedModel

router = APIRouter(prefix="/headstart/v1/billing")
Count = Annotated[Int32, Field(ge=0)]
_SECOND = timedelta(seconds=1)


class QuoteRequest(CachedContent):
    """What a create is given, or a number of tokens in the place of the content; and how the cache is to be used."""

    token_count: Count | None = None
    expected_hits: Count | None = None
    suffix_tokens: Count | None = None
    output_tokens: Count | None = None


@router.post("/quote")
async def make_quote(request: Request, caller: AnyCaller) -> Response:
    """Nothing is written, and nothing is reserved: the same may cost something else once a price to come has come."""
    if caller.project_id is not None and Scope.CACHES not in caller.scopes:
        check_scope(caller, Scope.BILLING)
    asked = read_query(request, ("project",))
    state = api_state(request)
    wire = parse(QuoteRequest, await read_json(request))
    if wire.expected_hits is None:
        raise InvalidArgument(
            "expected_hits is missing: say how many requests are to name the cache; it may be 0.",
            field="expected_hits",
        )
    project_id, prices = await state.pools.read(lambda session: _payer(session, caller, asked.get("project")))
    token_count, end = await _size(state, request, caller, wire)
    _check_hit(state.served_model, token_count, wire.suffix_tokens or 0, wire.output_tokens or 0)
    if wire.expire_time is None:
        end = _whole_seconds(caller.arrived_at, end)
    plan = Plan(
        project_id=project_id,
        model=state.served_model.name,
        token_count=token_count,
        start=caller.arrived_at,
        end=end,
        hits=wire.expected_hits,
        suffix_tokens=wire.suffix_tokens or 0,
        output_tokens=wire.output_tokens or 0,
    )
    body: dict[str, Any] = await state.pools.compute(lambda: quote_json(quote(plan, prices)))
    return Response(dump(body), media_type="application/json")


def _payer(session: Session, caller: Caller, asked: str | None) -> tuple[str, Prices]:
    project_id = asked_project(session, caller, asked)
    if project_id is None:
        raise InvalidArgument(
            "This is an operator's key: name the project whose prices are to count, as project=.",
            field="project",
        )
    return project_id, load_prices(session)


async def _size(
    state: ApiState, request: Request, caller: Caller, wire: QuoteRequest
) -> tuple[int, datetime]:
    """How many tokens the cache would have, and until when it would live; refused as a create would be."""
    if wire.token_count is None:
        draft = await read_draft(state, request, caller.arrived_at, wire, "")
        return len(draft.prefix.token_ids), draft.expire_at
    end = read_terms(state, request, caller.arrived_at, wire, "")
    if wire.contents or wire.system_instruction is not None:
        raise InvalidArgument(
            "Send either token_count or what is to be cached, not both.", field="token_count"
        )
    check_token_count(state, wire.token_count, "token_count")
    return wire.token_count, end


def _check_hit(served: ServedModel, token_count: int, suffix_tokens: int, output_tokens: int) -> None:
    """Refuse hits that no request could be: a prompt that is too long, or answers that have no room behind it."""
    prompt = token_count + suffix_tokens
    if prompt > served.input_token_limit:
        raise InputTooLarge(input_too_large(prompt, served.input_token_limit), field="suffix_tokens")
    each = min(served.output_token_limit, served.context_tokens - prompt)
    if output_tokens > each * MOST_CANDIDATES:
        raise InvalidArgument(
            f"output_tokens is {output_tokens}: behind a prompt of {prompt} tokens an answer has at most {each}, in each of "
            f"{MOST_CANDIDATES} candidates. Plan with less.",
            field="output_tokens",
        )


def _whole_seconds(start: datetime, end: datetime) -> datetime:
    """Round a life up: how many whole seconds it has depends on the instant of the create, and a quote is the most."""
    return start - (start - end) // _SECOND * _SECOND
