"""The messages that come in: what Gemini knows, and of that, what this server does."""

from typing import Annotated, Any

from pydantic import Field

from api.dialects.gemini.content import Content
from api.dialects.gemini.fields import EnumName, Int32, Repeated, Unsupported, Wire, only

Penalty = Annotated[float, Field(ge=-2, le=2)]
StopSequence = Annotated[str, Field(min_length=1, max_length=1000)]

MOST_CANDIDATES = 8  # of one prompt


class ThinkingConfig(Wire):
    """The served models do not think: only the words for "not" are accepted."""

    include_thoughts: Annotated[bool | None, only(False)] = None
    thinking_budget: Annotated[Int32 | None, only(0)] = None
    thinking_level: Unsupported = None


class GenerationConfig(Wire):
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Int32, Field(ge=1)] | None = None
    max_output_tokens: Annotated[Int32, Field(ge=1)] | None = None
    stop_sequences: Annotated[Repeated[StopSequence], Field(max_length=5)] | None = None
    seed: Int32 | None = None
    candidate_count: Annotated[Int32, Field(ge=1, le=MOST_CANDIDATES)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_mime_type: Annotated[str | None, only("text/plain")] = None
    response_modalities: Repeated[Annotated[str, only("TEXT")]] | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[Int32, Field(ge=0, le=20)] | None = None
    response_schema: Unsupported = None
    response_json_schema: Unsupported = None
    response_format: Unsupported = None
    thinking_config: ThinkingConfig | None = None
    speech_config: Unsupported = None
    image_config: Unsupported = None
    routing_config: Unsupported = None
    model_selection_config: Unsupported = None
    translation_config: Unsupported = None
    audio_transcription_config: Unsupported = None
    enable_affective_dialog: Annotated[bool | None, only(False)] = None
    # These say how input other than text is read; there is none, so nothing is left undone.
    media_resolution: EnumName | None = None
    audio_timestamp: bool | None = None
    enable_enhanced_civic_answers: bool | None = None


class SafetySetting(Wire):
    """Checked for its shape, otherwise without effect: no answer is ever blocked."""

    category: EnumName | None = None
    threshold: EnumName | None = None
    method: EnumName | None = None


class GenerateContentRequest(Wire):
    model: str | None = None
    contents: Repeated[Content] | None = None
    system_instruction: Content | None = None
    cached_content: str | None = None
    tools: Repeated[dict[str, Any]] | None = None
    tool_config: dict[str, Any] | None = None
    generation_config: GenerationConfig | None = None
    safety_settings: Repeated[SafetySetting] | None = None
    labels: Annotated[dict[str, str], Field(max_length=64)] | None = None
    service_tier: EnumName | None = None
    store: Annotated[bool | None, only(False)] = None
    continuation_token: Unsupported = None


class CountTokensRequest(Wire):
    model: str | None = None
    contents: Repeated[Content] | None = None
    generate_content_request: GenerateContentRequest | None = None


class CachedContent(Wire):
    """What create and patch are given. What only the server sets may be sent back, and is not looked at."""

    name: str | None = None
    display_name: Annotated[str, Field(max_length=128)] | None = None
    model: str | None = None
    system_instruction: Content | None = None
    contents: Repeated[Content] | None = None
    tools: Unsupported = None
    tool_config: Unsupported = None
    ttl: str | None = None
    expire_time: str | None = None
    create_time: str | None = None
    update_time: str | None = None
    usage_metadata: dict[str, Any] | None = None
    state: str | None = None
    tier: str | None = None
    hit_count: Int32 | None = None
    cost: dict[str, Any] | None = None
    encryption_spec: Unsupported = None
