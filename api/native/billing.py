"""GET /headstart/v1/billing/report: the bill of a period, of one project or, for operators, of all."""

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from api.auth import AnyCaller, Caller, check_scope
from api.json_text import dump
from api.state import api_state
from billing.periods import parse_period
from billing.report import Report, report
from billing.report_json import report_json
from core.clock import Clock, instant
from core.errors import InvalidArgument, ProjectNotFound
from models.api_key import Scope
from models.project import get_project_named

router = APIRouter(prefix="/headstart/v1/billing")
PARAMETERS = ("start", "end", "project")


@router.get("/report")
async def get_report(request: Request, caller: AnyCaller) -> Response:
    if caller.project_id is not None:
        check_scope(caller, Scope.BILLING)
    query = _read_query(request)
    state = api_state(request)
    made = await state.pools.read(lambda session: _make_report(session, state.clock, caller, query))
    return Response(dump(report_json(made)), media_type="application/json")


def _read_query(request: Request) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name == "key":  # the caller's
            continue
        if name not in PARAMETERS:
            raise InvalidArgument(
                f"{name[:64]!r} is no parameter of this route; it has {', '.join(PARAMETERS)}.",
                field=name[:64],
            )
        if name in query:
            raise InvalidArgument(f"{name} is given twice; give it once.", field=name)
        if "\0" in value:
            raise InvalidArgument(f"{name} has a NUL character; remove it.", field=name)
        query[name] = value
    return query


def _make_report(session: Session, clock: Clock, caller: Caller, query: dict[str, str]) -> Report:
    now = instant(session, clock)
    period = parse_period(query.get("start"), query.get("end"), now)
    project_id = _project_id(session, caller, query.get("project"))
    return report(session, start=period.start, end=period.end, now=now, project_id=project_id)


def _project_id(session: Session, caller: Caller, asked: str | None) -> str | None:
    """Whose bill it is; None for all. What is another project's is as absent as what does not exist."""
    if asked is None:
        return caller.project_id
    project_id = get_project_named(session, asked).id
    if caller.project_id not in (None, project_id):
        raise ProjectNotFound(f"There is no project {asked}.", field="project")
    return project_id
