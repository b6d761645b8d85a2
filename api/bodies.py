"""Reads the JSON body of a request; call it after the caller is known."""

import asyncio
import time
from typing import Any

from starlette.requests import Request

from api import json_text
from api.patience import allowed_seconds, too_late
from api.state import api_state

_SMALL_BYTES = 1 << 16  # parsed faster than a thread is found for it


async def read_json(request: Request) -> dict[str, Any]:
    """Read and parse; a body that trickles in may take as long as the whole request, and no longer."""
    state = api_state(request)
    seconds = allowed_seconds(request, state.settings.request_timeout_seconds)
    try:
        async with asyncio.timeout(request.state.arrived + seconds - time.monotonic()):
            body = await request.body()
    except TimeoutError:
        raise too_late(seconds) from None
    depth = state.settings.max_json_depth
    if len(body) <= _SMALL_BYTES:
        return json_text.load(body, depth)
    return await state.pools.compute(lambda: json_text.load(body, depth))
