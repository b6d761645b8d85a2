"""From a request's contents to token ids: with a cache or without, and everything that is refused on the way."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic.alias_generators import to_camel
from starlette.requests import Request

from api.auth import ProjectCaller
from api.dialects.gemini.cache_names import read_cache_id
from api.dialects.gemini.content import to_messages
from api.dialects.gemini.requests import GenerateContentRequest
from api.errors import NATIVE_PREFIX
from api.state import ApiState
from caching import lifecycle
from core.clock import instant
from core.errors import (
    CacheFieldConflict,
    CacheModelMismatch,
    CachePrefixMismatch,
    InputTooLarge,
    InvalidArgument,
    ModelNotFound,
    NotSupported,
)
from prompting.messages import Message

_CONFLICT = (
    "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config.\n\n"
    "Proposed fix: move those values to CachedContent from GenerateContent request."
)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What is needed of a cache to ask against it."""

    cache_id: str
    token_count: int
    text: str
    messages: tuple[Message, ...]
    created_at: datetime  # what the template was told is now


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose every field is in order; its messages are what comes after the cache, if there is one."""

    prefix: CachedPrefix | None
    messages: tuple[Message, ...]

    @property
    def cached_tokens(self) -> int:
        return 0 if self.prefix is None else self.prefix.token_count


def check_model(state: ApiState, request: Request, model: str, method: str) -> None:
    """Raise ModelNotFound for a model that is neither the served one nor an alias of it."""
    if not state.served_model.resolve(model):
        raise model_not_found(request, model, method)


def model_not_found(request: Request, model: str, method: str) -> ModelNotFound:
    path: str = request.scope["path"]
    version = "headstart/v1" if path.startswith(NATIVE_PREFIX) else path.split("/")[1]
    return ModelNotFound(
        f"models/{model.removeprefix('models/')[:200]} is not found for API version {version}, or is not supported for "
        f"{method[:100]}. Call ListModels to see the list of available models and their supported methods.",
        field="model",
    )


async def resolve_asked(
    state: ApiState,
    request: Request,
    caller: ProjectCaller,
    model: str,
    method: str,
    wire: GenerateContentRequest,
    root: str = "",
) -> Asked:
    """Check a request and fetch the cache that it names. A model that is not the cache's is told apart from none at all."""
    _refuse_tools(wire, root)
    if not wire.contents:
        raise InvalidArgument(
            "* GenerateContentRequest.contents: contents is not specified", field=_path(root, "contents")
        )
    prefix = None
    if wire.cached_content:
        prefix = await _find_prefix(state, caller, model, wire.cached_content)
    check_model(state, request, model, method)
    if wire.model and not state.served_model.resolve(wire.model):
        raise InvalidArgument(
            f"The model in the body ({wire.model[:100]}) is not the one in the path ({model[:100]}).",
            field=_path(root, "model"),
        )
    asked = Asked(prefix, to_messages(wire.system_instruction, wire.contents, root))
    _refuse_divided_turn(asked, root)
    return asked


def check_size(state: ApiState, token_count: int) -> None:
    limit = state.served_model.input_token_limit
    if token_count > limit:
        raise InputTooLarge(input_too_large(token_count, limit), field="contents")


def input_too_large(token_count: int, limit: int) -> str:
    """Google's words, for a prompt as for a cache."""
    return f"The input token count ({token_count}) exceeds the maximum number of tokens allowed ({limit})."


def refuse_conflict(body: dict[str, Any], root: str = "") -> None:
    """Refuse beside a cache what the cache carries. Asked before anything else is read of a body: whatever else is wrong or
    not supported in these fields, this is what their sender has to change."""
    if not (body.get("cachedContent") or body.get("cached_content")):
        return
    for name in ("system_instruction", "tools", "tool_config"):
        if any(body.get(each) not in (None, []) for each in (name, to_camel(name))):
            raise CacheFieldConflict(_CONFLICT, field=_path(root, name))


def _refuse_tools(wire: GenerateContentRequest, root: str) -> None:
    for name in ("tools", "tool_config"):
        if getattr(wire, name) not in (None, []):
            path = _path(root, name)
            raise NotSupported(f"'{path}' is not supported by this server: leave it out.", field=path)


def _refuse_divided_turn(asked: Asked, root: str) -> None:
    """Contents of the model that follow one another are one message (`to_messages`), and a message cannot begin in a cache."""
    cached = () if asked.prefix is None else asked.prefix.messages
    if cached and cached[-1].role == asked.messages[0].role == "assistant":
        raise CachePrefixMismatch(
            "The cached content ends on a turn of the model, and contents begin with one: together they are one turn, which "
            "cannot be divided. Begin with a turn of the user.",
            field=_path(root, "contents"),
        )


async def _find_prefix(state: ApiState, caller: ProjectCaller, model: str, name: str) -> CachedPrefix:
    cache_id = read_cache_id(name)
    cache = await state.pools.read(
        lambda session: lifecycle.get_with_content(
            session, caller.project_id, cache_id, instant(session, state.clock)
        )
    )
    served = state.served_model
    if not served.resolve(model) or cache.fingerprint != served.fingerprint:
        asked = served.name if served.resolve(model) else model.removeprefix("models/")[:200]
        raise CacheModelMismatch(
            f"Model used by GenerateContent request (models/{asked}) and CachedContent (models/{cache.model}) "
            "has to be the same.",
            field="model",
            metadata={"model": cache.model},
        )
    assert cache.prefix_text is not None, "a usable cache has its content"
    assert cache.messages is not None, "a usable cache has its content"
    return CachedPrefix(
        cache.id,
        cache.token_count,
        cache.prefix_text,
        tuple(Message.from_json(each) for each in cache.messages),
        cache.created_at,
    )


def _path(root: str, name: str) -> str:
    return f"{root}.{name}" if root else name
