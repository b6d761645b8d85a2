"""Health: live tells that the process answers, ready that it can serve. Neither needs a key."""

from fastapi import APIRouter
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import Response

from api.json_text import dump
from api.state import api_state
from core.errors import Unavailable

router = APIRouter(prefix="/headstart/v1/health")


@router.get("/live")
async def live() -> Response:
    return Response(dump({"status": "live"}), media_type="application/json")


@router.get("/ready")
async def ready(request: Request) -> Response:
    state = api_state(request)
    if not state.ready():
        raise Unavailable(
            "The server is starting or stopping, or its engine has failed.", retry_after_seconds=1
        )
    await state.pools.read(lambda session: session.execute(text("SELECT 1")))
    return Response(dump({"status": "ready"}), media_type="application/json")
