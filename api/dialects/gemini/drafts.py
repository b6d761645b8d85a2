"""From the body of a create to a draft of the cache, with everything that is refused on the way; nothing is written.

What a cache would cost is told of the same drafts: what no create would take has no price. root: the path that errors give
the body itself.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from starlette.requests import Request

from api.builds import Draft
from api.dialects.gemini.content import to_messages
from api.dialects.gemini.prompts import check_model, input_too_large
from api.dialects.gemini.rejections import path_of
from api.dialects.gemini.requests import CachedContent
from api.dialects.gemini.times import parse_expiry
from api.state import ApiState
from core.errors import CacheTooLarge, CacheTooSmall, InvalidArgument
from prompting.format import Prefix
from prompting.messages import Message


async def read_draft(
    state: ApiState, request: Request, arrived_at: datetime, wire: CachedContent, root: str
) -> Draft:
    """Read and check everything. Raises what a create is refused with, but for quotas and a lack of room."""
    expire_at = read_terms(state, request, arrived_at, wire, root)
    if not wire.contents and wire.system_instruction is None:
        raise InvalidArgument(
            "There is nothing to cache: set contents, system_instruction or both.",
            field=path_of(("contents",), root),
        )
    messages = to_messages(wire.system_instruction, wire.contents or [], root)
    prefix = await state.pools.compute(lambda: _sized_prefix(state, messages, arrived_at, root))
    return Draft(wire.display_name or "", messages, prefix, arrived_at, expire_at)


def read_terms(
    state: ApiState, request: Request, arrived_at: datetime, wire: CachedContent, root: str
) -> datetime:
    """Check what is asked for beside the content: a model that is served, and the expiry, which is given.

    It is counted from the arrival of the request: building is paid out of the life that was asked for.
    """
    longest = timedelta(seconds=state.settings.max_ttl_seconds)
    expiry = parse_expiry(wire.ttl, wire.expire_time, arrived_at, longest, root)
    if not wire.model:
        path = path_of(("model",), root)
        raise InvalidArgument(f"{path} is missing: name a model.", field=path)
    check_model(state, request, wire.model, "createCachedContent")
    if isinstance(expiry, datetime):
        return expiry
    return arrived_at + (expiry or timedelta(seconds=state.settings.default_ttl_seconds))


def check_token_count(state: ApiState, count: int, field: str) -> None:
    """Raise CacheTooSmall or CacheTooLarge for a cache of so many tokens; field: what was too small or too large."""
    least, most = state.served_model.min_cache_tokens, state.served_model.input_token_limit
    if count < least:
        raise CacheTooSmall(
            f"Cached content is too small. total_token_count={count}, min_total_token_count={least}",
            field=field,
            metadata={"total_token_count": str(count), "min_total_token_count": str(least)},
        )
    if count > most:
        raise CacheTooLarge(
            input_too_large(count, most),
            field=field,
            metadata={"total_token_count": str(count), "max_total_token_count": str(most)},
        )


def _sized_prefix(state: ApiState, messages: Sequence[Message], created_at: datetime, root: str) -> Prefix:
    """Tokenise what is to be cached; refuse too much before, and too little after."""
    prompts, field = state.served_model.format, path_of(("contents",), root)
    at_least = prompts.minimum_tokens(messages)
    if at_least > state.served_model.input_token_limit:
        check_token_count(state, at_least, field)
    prefix = prompts.prefix(messages, at=created_at)
    check_token_count(state, len(prefix.token_ids), field)
    return prefix
