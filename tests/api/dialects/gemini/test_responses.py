from typing import Any

import pytest

from api.dialects.gemini.responses import Usage, usage_metadata


def details(count: int) -> list[dict[str, Any]]:
    return [{"modality": "TEXT", "tokenCount": count}]


@pytest.mark.parametrize(
    ("usage", "more"),
    [
        (Usage(9, 0, 0), {"totalTokenCount": 9}),
        (Usage(9, 0, 2), {"candidatesTokenCount": 2, "totalTokenCount": 11}),
        (
            Usage(9, 4, 2),
            {
                "cachedContentTokenCount": 4,
                "implicitCachedTokenCount": 0,
                "candidatesTokenCount": 2,
                "totalTokenCount": 11,
                "cacheTokensDetails": details(4),
            },
        ),
        (
            Usage(9, 7, 0, implicit_tokens=3),
            {
                "cachedContentTokenCount": 7,
                "implicitCachedTokenCount": 3,
                "totalTokenCount": 9,
                "cacheTokensDetails": details(7),
            },
        ),
        (
            Usage(9, 3, 0, implicit_tokens=3),
            {
                "cachedContentTokenCount": 3,
                "implicitCachedTokenCount": 3,
                "totalTokenCount": 9,
                "cacheTokensDetails": details(3),
            },
        ),
    ],
)
def test_the_whole_prompt_counts_and_what_was_read_of_it(usage: Usage, more: dict[str, Any]) -> None:
    assert usage_metadata(usage) == {"promptTokenCount": 9, "promptTokensDetails": details(9), **more}
