"""What the demo's customer gets back, free of any client's types."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheHandle:
    name: str
    token_count: int


@dataclass(frozen=True, slots=True)
class Answer:
    """first_text_s: from the call to the first piece of text. Counts are the server's, as it bills them."""

    question: str
    text: str
    first_text_s: float
    prompt_tokens: int
    cached_tokens: int
