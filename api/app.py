"""Puts the HTTP side together: routes, limits and the edge. `serve` fills in the state and runs it."""

from typing import NoReturn

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match

from api.dialects.gemini.router import router as gemini
from api.edge import RequestEdge
from api.errors import to_app_error
from api.limits import BodyLimit
from api.native.router import router as native
from api.state import ApiState
from core.errors import MethodNotAllowed

__all__ = ["ApiState", "create_app"]

_METHODS = ("GET", "POST", "PATCH", "DELETE")


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


async def _to_edge(request: Request, error: Exception) -> NoReturn:
    """Unknown routes and wrong methods take the one way out that all errors take."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = ", ".join(method for method in _METHODS if _answers(request, method))
        raise MethodNotAllowed(f"This route answers to {allowed}.", metadata={"allowed": allowed})
    raise to_app_error(error) from None


def _answers(request: Request, method: str) -> bool:
    """Ask every route: Starlette names the methods of the first one alone."""
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
