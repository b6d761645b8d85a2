"""Whatever JSON comes in is read, or refused by an error of ours that names a field: never a crash."""

from typing import Any

from hypothesis import given, settings, strategies as st

from api.dialects.gemini.content import Content, to_messages
from api.dialects.gemini.rejections import parse
from api.dialects.gemini.requests import (
    CachedContent,
    CountTokensRequest,
    GenerateContentRequest,
    GenerationConfig,
)
from core.errors import InvalidArgument, NotSupported

NAMES = sorted(
    {
        name
        for kind in (GenerateContentRequest, CachedContent, CountTokensRequest, GenerationConfig, Content)
        for field, info in kind.model_fields.items()
        for name in (field, info.alias or field)
    }
    | {"text", "inlineData", "mimeType", "data", "thought", "unknown", ""}
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
SCALARS |= st.sampled_from(["user", "model", "text/plain", "YQ==", "300s", "2030-01-01T00:00:00Z", "TEXT"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=25,
)
BODIES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5)


@given(body=BODIES)
@settings(max_examples=300, deadline=None)
def test_is_read_or_refused_by_field(body: dict[str, Any]) -> None:
    for refusal in (refusal_of(GenerateContentRequest, body), refusal_of(CachedContent, body)):
        assert refusal is None or (refusal.field is not None and refusal.message)


def refusal_of(
    kind: type[GenerateContentRequest] | type[CachedContent], body: dict[str, Any]
) -> InvalidArgument | NotSupported | None:
    try:
        wire: GenerateContentRequest | CachedContent = parse(kind, body)
        to_messages(wire.system_instruction, wire.contents or [])
    except (InvalidArgument, NotSupported) as error:
        return error
    return None
