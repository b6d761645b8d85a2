"""/headstart/v1/billing/limits and /credit: what may be spent and cached, and how much of it is used, now."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from api.auth import AnyCaller, check_scope
from api.json_text import dump
from api.native.asking import asked_project
from api.native.queries import read_query
from api.state import api_state
from billing.limits import list_status
from billing.spending_json import credit_json, limit_json, quota_json
from core.clock import instant
from models.api_key import Scope
from models.credit import list_credits
from models.token_quota import list_token_quotas

router = APIRouter(prefix="/headstart/v1/billing")


@router.get("/limits")
async def get_limits(request: Request, caller: AnyCaller) -> Response:
    state = api_state(request)

    def read(session: Session, project_id: str | None) -> dict[str, Any]:
        statuses = list_status(session, project_id, instant(session, state.clock))
        return {
            "limits": [limit_json(each) for each in statuses],
            "quotas": [quota_json(each) for each in list_token_quotas(session, project_id)],
        }

    return await _answer(request, caller, read)


@router.get("/credit")
async def get_credit(request: Request, caller: AnyCaller) -> Response:
    return await _answer(
        request,
        caller,
        lambda session, project_id: {
            "credit": [credit_json(each) for each in list_credits(session, project_id)]
        },
    )


async def _answer(
    request: Request, caller: AnyCaller, read: Callable[[Session, str | None], dict[str, Any]]
) -> Response:
    """Answer for the caller's own project; for an operator, of all or of the one asked for."""
    if caller.project_id is not None:
        check_scope(caller, Scope.BILLING)
    asked = read_query(request, ("project",))
    body = await api_state(request).pools.read(
        lambda session: read(session, asked_project(session, caller, asked.get("project")))
    )
    return Response(dump(body), media_type="application/json")
