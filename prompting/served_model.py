"""The model that is on offer: its names, limits and defaults, and the format of its prompts."""

from dataclasses import dataclass

from prompting.format import PromptFormat


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    aliases: tuple[str, ...]
    display_name: str
    description: str
    context_tokens: int
    input_token_limit: int  # of the prompt; what is left of the context is the answer's
    output_token_limit: int
    min_cache_tokens: int
    fingerprint: str  # what caches are bound to
    format: PromptFormat
    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 64
    version: str = "001"
    kv_bytes_per_token: int = 0  # known once an engine has loaded it
    cache_token_capacity: int = 0  # tokens that all caches together may pin

    def resolve(self, requested: str) -> bool:
        """Whether a request for this name, with or without "models/", means this model."""
        return requested.removeprefix("models/") in (self.name, *self.aliases)
