"""What every handler works with; the composition root fills it in."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from starlette.requests import Request

from api.pools import Pools
from core.clock import Clock
from core.secret import RootSecret
from core.settings import Settings
from core.transport import Transport
from models.session import Database
from prompting.served_model import ServedModel


@dataclass(frozen=True)
class ApiState:
    """`ready` tells whether requests can be served: an engine answers and nothing is shutting down."""

    settings: Settings
    database: Database
    clock: Clock
    secret: RootSecret
    transport: Transport
    served_model: ServedModel
    ready: Callable[[], bool]

    @cached_property
    def pools(self) -> Pools:
        return Pools(self.database, self.settings.database_pool_size)


def api_state(request: Request) -> ApiState:
    return cast(ApiState, request.app.state.api)


def request_id(request: Request) -> str:
    """The id of this request in the log, in the answer's header, and of the usage row if it generates."""
    return cast(str, request.state.request_id)
