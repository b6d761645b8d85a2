"""/headstart/v1/billing: the bill of a period, of one project or, for operators, of all."""

from itertools import islice
from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from api import page_tokens
from api.auth import AnyCaller, Caller, check_scope
from api.json_text import dump
from api.native.asking import MOST_ROWS, about_pages, asked_project, page_size
from api.native.queries import read_query
from api.state import ApiState, api_state
from billing.asking import parse_query
from billing.report import Report, report
from billing.report_json import report_json
from core.clock import instant
from models.api_key import Scope

router = APIRouter(prefix="/headstart/v1/billing")
PARAMETERS = ("start", "end", "project", "groupBy", "timeZone", "pageSize", "pageToken")


@router.get("/report")
async def get_report(request: Request, caller: AnyCaller) -> Response:
    if caller.project_id is not None:
        check_scope(caller, Scope.BILLING)
    asked = read_query(request, PARAMETERS)
    state = api_state(request)
    body = await state.pools.read(lambda session: _make_page(session, state, caller, asked))
    return Response(dump(body), media_type="application/json")


def _make_page(session: Session, state: ApiState, caller: Caller, asked: dict[str, str]) -> dict[str, Any]:
    size = page_size(asked.get("pageSize"))
    query = parse_query(
        start=asked.get("start"),
        end=asked.get("end"),
        group_by=[word.strip() for word in asked.get("groupBy", "").split(",") if word.strip()],
        zone=asked.get("timeZone"),
        project_id=asked_project(session, caller, asked.get("project")),
        now=instant(session, state.clock),
    )
    made = report(session, query, instant(session, state.clock), MOST_ROWS)
    about = about_pages("report", query, asked)
    return _page(made, size, about, asked.get("pageToken"), state.secret.derive(page_tokens.PURPOSE))


def _page(made: Report, size: int, about: list[str], token: str | None, key: bytes) -> dict[str, Any]:
    """Groups after the one that the token names; the total is that of all pages."""
    after = None if token is None else tuple(page_tokens.decode(key, about, token, "pageToken"))
    rest = ((group, sums) for group, sums in made.groups.items() if after is None or group > after)
    groups = list(islice(rest, size + 1))
    body = report_json(made, dict(groups[:size]))
    if len(groups) > size:
        body["nextPageToken"] = page_tokens.encode(key, about, groups[size - 1][0])
    return body
