"""/headstart/v1/billing/caches: what each cache of a period has cost and saved, the greatest loss first."""

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
from billing.cache_report import SUBJECTS, CacheReport, CacheSums, Position, cache_figures, cache_report
from billing.cache_report_json import cache_report_json
from core.clock import instant
from models.api_key import Scope

router = APIRouter(prefix="/headstart/v1/billing")
PARAMETERS = ("start", "end", "project", "timeZone", "pageSize", "pageToken")


@router.get("/caches")
async def get_caches(request: Request, caller: AnyCaller) -> Response:
    if caller.project_id is not None:
        check_scope(caller, Scope.BILLING)
    asked = read_query(request, PARAMETERS)
    state = api_state(request)
    body = await state.pools.read(lambda session: _make_page(session, state, caller, asked))
    return Response(dump(body), media_type="application/json")


def _make_page(session: Session, state: ApiState, caller: Caller, asked: dict[str, str]) -> dict[str, Any]:
    size, now = page_size(asked.get("pageSize")), instant(session, state.clock)
    query = parse_query(
        start=asked.get("start"),
        end=asked.get("end"),
        group_by=SUBJECTS,
        zone=asked.get("timeZone"),
        project_id=asked_project(session, caller, asked.get("project")),
        now=now,
    )
    made = cache_report(session, query, now, MOST_ROWS)
    key, about = state.secret.derive(page_tokens.PURPOSE), about_pages("caches", query, asked)
    token = asked.get("pageToken")
    rest = _after(made, None if token is None else page_tokens.decode(key, about, token, "pageToken"))
    body = cache_report_json(made, cache_figures(session, rest[:size], now))
    if len(rest) > size:
        body["nextPageToken"] = page_tokens.encode(key, about, rest[size - 1].position)
    return body


def _after(made: CacheReport, last: list[Any] | None) -> list[CacheSums]:
    """The caches behind the last of a page. One whose figures have moved since may be shown again, or be passed over."""
    if last is None:
        return list(made.lines)
    net, project_id, cache_id = last
    position: Position = (net, project_id, cache_id)
    return [line for line in made.lines if line.position > position]
