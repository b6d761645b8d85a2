"""Pure ASGI: the outermost frame of a request. Gives it an id, turns whatever is raised into an answer, logs one line.

The query string is never logged: it may hold an API key.
"""

import logging
import time

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_response, to_app_error
from core.ids import new_request_id

log = logging.getLogger(__name__)


class RequestEdge:
    """One of the three places where `Exception` is caught."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        arrived = time.monotonic()
        scope.setdefault("state", {}).update(request_id=request_id, arrived=arrived)
        status: int | None = None

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except Exception as error:
            answer = error_response(to_app_error(error), Request(scope))
            if status is not None:
                raise  # too late for an answer: the server drops the connection, which the client sees
            await answer(scope, receive, send_marked)
        finally:
            log.info(
                "request",
                extra={
                    "request_id": request_id,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "duration_ms": round((time.monotonic() - arrived) * 1000),
                },
            )
