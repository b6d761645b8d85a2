"""What goes out: the resources and answers of the Gemini dialect as plain JSON values."""

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from api import json_text
from caching.status import CacheStatus
from core.clock import format_instant
from core.ids import cache_name
from core.messages import Cost, FinishReason
from prompting.served_model import ServedModel

_METHODS = ("generateContent", "streamGenerateContent", "countTokens", "createCachedContent")
# A request that somebody else stopped, a shutdown for instance, has no reason of its own in Gemini.
FINISH_REASONS = {
    FinishReason.STOP: "STOP",
    FinishReason.MAX_TOKENS: "MAX_TOKENS",
    FinishReason.CANCELLED: "OTHER",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """prompt_tokens includes cached_tokens; these include implicit_tokens, which came from no cache that was named."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int = 0
    implicit_tokens: int = 0


def ok(body: dict[str, Any]) -> Response:
    """Answer with 200: the SDKs take every other status for an error."""
    return Response(json_text.dump(body), media_type="application/json")


def cache_resource(status: CacheStatus) -> dict[str, Any]:
    """What is shown of a cache; its content never is. What follows its usage is ours, and dropped or kept by the SDKs."""
    cache = status.cache
    return {
        "name": cache_name(cache.id),
        "model": f"models/{cache.model}",
        "displayName": cache.display_name,
        "createTime": format_instant(cache.created_at),
        "updateTime": format_instant(cache.updated_at),
        "expireTime": format_instant(cache.expire_at),
        "usageMetadata": {"totalTokenCount": cache.token_count},
        "state": status.state.value,
        "tier": "NONE" if status.tier is None else status.tier.value,
        "hitCount": status.hit_count,
        "cost": _cost(status.cost),
    }


def request_cost(cost: Cost) -> dict[str, Any]:
    """What a request is charged, and what caching saved on it; a stream tells it with its last event."""
    return _cost(cost) | {"savedNanoUsd": cost.without_cache_nano_usd - cost.amount_nano_usd}


def _cost(cost: Cost) -> dict[str, Any]:
    return {"amountNanoUsd": cost.amount_nano_usd, "nanoUsdByMeter": dict(cost.meters)}


def model_resource(model: ServedModel) -> dict[str, Any]:
    """Describe the served model. The last three are ours: the floor that elsewhere has to be guessed, and what KV takes."""
    return {
        "name": f"models/{model.name}",
        "version": model.version,
        "displayName": model.display_name,
        "description": model.description,
        "inputTokenLimit": model.input_token_limit,
        "outputTokenLimit": model.output_token_limit,
        "supportedGenerationMethods": list(_METHODS),
        "temperature": model.temperature,
        "maxTemperature": 2.0,
        "topP": model.top_p,
        "topK": model.top_k,
        "minCacheTokens": model.min_cache_tokens,
        "kvBytesPerToken": model.kv_bytes_per_token,
        "cacheTokenCapacity": model.cache_token_capacity,
    }


def usage_metadata(usage: Usage) -> dict[str, Any]:
    """Counts that are zero are left out, save the prompt's and the total. implicitCachedTokenCount, which is ours, stands
    beside cachedContentTokenCount and is part of it."""
    metadata: dict[str, Any] = {"promptTokenCount": usage.prompt_tokens}
    if usage.cached_tokens:
        metadata["cachedContentTokenCount"] = usage.cached_tokens
        metadata["implicitCachedTokenCount"] = usage.implicit_tokens
    if usage.output_tokens:
        metadata["candidatesTokenCount"] = usage.output_tokens
    metadata["totalTokenCount"] = usage.prompt_tokens + usage.output_tokens
    return metadata | token_details(usage)


def token_details(usage: Usage) -> dict[str, Any]:
    details = {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.prompt_tokens}]}
    if usage.cached_tokens:
        details["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": usage.cached_tokens}]
    return details
