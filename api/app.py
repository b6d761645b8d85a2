"""Puts the HTTP side together: routes, limits and the edge. `serve` fills in the state and runs it."""

from typing import NoReturn

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request

from api.dialects.gemini.router import router as gemini
from api.edge import RequestEdge
from api.errors import to_app_error
from api.limits import BodyLimit
from api.native.router import router as native
from api.state import ApiState

__all__ = ["ApiState", "create_app"]


def create_app(state: ApiState) -> FastAPI:
    """Build the application. Middleware is pure ASGI: Starlette's base class hides a client that hangs up."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.api = state
    app.include_router(gemini)
    app.include_router(native)
    app.add_exception_handler(HTTPException, _to_edge)
    app.add_middleware(BodyLimit, max_bytes=state.settings.max_body_bytes)
    app.add_middleware(RequestEdge)  # added last: the outermost
    return app


async def _to_edge(_request: Request, error: Exception) -> NoReturn:
    """Unknown routes and wrong methods take the one way out that all errors take."""
    raise to_app_error(error) from None
