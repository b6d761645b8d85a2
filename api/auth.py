"""Who is calling: an API key in a header, in the query or as a bearer token, and what it may do."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Depends
from sqlalchemy.orm import Session
from starlette.requests import Request

from api.state import ApiState, api_state
from core import api_keys
from core.clock import instant
from core.errors import AppError, BearerInvalid, KeyInvalid, KeyMissing, ScopeMissing
from models.api_key import Scope, find_api_key


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a valid key. project_id None: an operator. arrived_at: by the clock that stamps rows."""

    key_id: str
    project_id: str | None
    scopes: frozenset[Scope]
    arrived_at: datetime


@dataclass(frozen=True, slots=True)
class ProjectCaller:
    """A caller who acts for a project, and has the scope that the route asks for."""

    key_id: str
    project_id: str
    arrived_at: datetime


async def authenticate(request: Request) -> Caller:
    """Find the caller, or refuse; asked for each request, so a revoked key ends at once."""
    state = api_state(request)
    shown, refusal = _credential(request)
    key_id = api_keys.parse(shown)
    if key_id is None:
        raise refusal
    caller = await state.pools.read(lambda session: _find_caller(session, state, key_id, shown))
    if caller is None:
        raise refusal
    return caller


def require(scope: Scope) -> Callable[[Request], Awaitable[ProjectCaller]]:
    """Make the dependency that lets in project keys with a scope."""

    async def project_caller(request: Request) -> ProjectCaller:
        caller = await authenticate(request)
        if caller.project_id is None:
            raise ScopeMissing("This is an operator's key, and no project's. Use a key of a project here.")
        check_scope(caller, scope)
        return ProjectCaller(caller.key_id, caller.project_id, caller.arrived_at)

    return project_caller


def check_scope(caller: Caller, scope: Scope) -> None:
    if scope not in caller.scopes:
        raise ScopeMissing(
            f"The key lacks the scope '{scope}'. Make one that has it: headstart keys create.",
            metadata={"scope": scope},
        )


AnyCaller = Annotated[Caller, Depends(authenticate)]
CachesCaller = Annotated[ProjectCaller, Depends(require(Scope.CACHES))]
GenerateCaller = Annotated[ProjectCaller, Depends(require(Scope.GENERATE))]


def _credential(request: Request) -> tuple[str, AppError]:
    """Find the key, and the error to raise if it is none. The header wins over the query, the query over a bearer."""
    shown = request.headers.get("x-goog-api-key", "").strip() or request.query_params.get("key", "").strip()
    if shown:
        return shown, KeyInvalid("API key not valid. Please pass a valid API key.")
    authorization = request.headers.get("authorization", "").strip()
    if authorization:
        kind, _, token = authorization.partition(" ")
        refusal = BearerInvalid("Request had invalid authentication credentials. Expected an API key.")
        return (token.strip() if kind.lower() == "bearer" else ""), refusal
    raise KeyMissing(
        "Method doesn't allow unregistered callers (callers without established identity). "
        "Please use API Key or other form of API consumer identity to call this API."
    )


def _find_caller(session: Session, state: ApiState, key_id: str, shown: str) -> Caller | None:
    now = instant(session, state.clock)
    key = find_api_key(session, key_id)
    is_valid = api_keys.verify(
        state.secret.derive(api_keys.PEPPER), shown, None if key is None else key.secret_mac
    )
    if key is None or not is_valid or key.revoked_at is not None:
        return None
    return Caller(key.id, key.project_id, key.scopes, now)
