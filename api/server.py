"""How the application is run: the settings of uvicorn that this service depends on."""

import uvicorn
from fastapi import FastAPI

from api.heads import BoundedHeads

_KEEP_ALIVE_SECONDS = 65  # longer than clients keep idle connections, so that they do not meet a closed one
_GRACE_SECONDS = 10


def server_config(app: FastAPI, host: str, port: int) -> uvicorn.Config:
    """Configure uvicorn.

    Its access log stays off: it prints the query, where Gemini's clients may put their key; the edge logs each request.
    Forwarded-for headers are not believed, logging is left as it is, and what still runs some seconds after the signal
    to stop is cancelled: whoever stops the server first tells the engine, so that streams end by themselves.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedHeads,
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
