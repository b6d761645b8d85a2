"""What goes out: the resources and answers of the Gemini dialect as plain JSON values."""

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from api import json_text
from core.clock import format_instant
from core.ids import cache_name
from core.messages import FinishReason
from models.cache import Cache
from prompting.served_model import ServedModel

_METHODS = ("generateContent", "streamGenerateContent", "countTokens", "createCachedContent")
# A request that somebody else stopped, a shutdown for instance, has no reason of its own in Gemini.
_FINISH_REASONS = {
    FinishReason.STOP: "STOP",
    FinishReason.MAX_TOKENS: "MAX_TOKENS",
    FinishReason.CANCELLED: "OTHER",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """prompt_tokens includes cached_tokens."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer, or the whole one; finish_reason is None where more comes."""

    response_id: str
    model_name: str
    text: str
    finish_reason: FinishReason | None
    usage: Usage


def ok(body: dict[str, Any]) -> Response:
    """Answer with 200: the SDKs take every other status for an error."""
    return Response(json_text.dump(body), media_type="application/json")


def cache_resource(cache: Cache) -> dict[str, Any]:
    """What is shown of a cache; its content never is. `state` is ours, and dropped or kept by the SDKs."""
    return {
        "name": cache_name(cache.id),
        "model": f"models/{cache.model}",
        "displayName": cache.display_name,
        "createTime": format_instant(cache.created_at),
        "updateTime": format_instant(cache.updated_at),
        "expireTime": format_instant(cache.expire_at),
        "usageMetadata": {"totalTokenCount": cache.token_count},
        "state": cache.state.value,
    }


def model_resource(model: ServedModel) -> dict[str, Any]:
    """Describe the served model. `minCacheTokens` is ours: elsewhere clients have to guess the floor."""
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
    }


def answer(chunk: Chunk) -> dict[str, Any]:
    """A GenerateContentResponse. There is always one candidate with one part: the SDKs' chats need both."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": chunk.text}]}}
    if chunk.finish_reason is not None:
        candidate["finishReason"] = _FINISH_REASONS[chunk.finish_reason]
    candidate["index"] = 0
    return {
        "candidates": [candidate],
        "usageMetadata": usage_metadata(chunk.usage),
        "modelVersion": chunk.model_name,
        "responseId": chunk.response_id,
    }


def usage_metadata(usage: Usage) -> dict[str, Any]:
    """Counts that are zero are left out, save the prompt's and the total."""
    metadata: dict[str, Any] = {"promptTokenCount": usage.prompt_tokens}
    if usage.cached_tokens:
        metadata["cachedContentTokenCount"] = usage.cached_tokens
    if usage.output_tokens:
        metadata["candidatesTokenCount"] = usage.output_tokens
    metadata["totalTokenCount"] = usage.prompt_tokens + usage.output_tokens
    return metadata | token_details(usage)


def token_details(usage: Usage) -> dict[str, Any]:
    details = {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.prompt_tokens}]}
    if usage.cached_tokens:
        details["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": usage.cached_tokens}]
    return details
