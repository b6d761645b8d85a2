"""The demo's customer: the stock google-genai client, with its base URL and key changed and nothing else."""

import time

from google import genai
from google.genai import types

from cli.demo.answers import Answer, CacheHandle

MAX_OUTPUT_TOKENS = 40
SENTENCE_ENDS = [".", "\n"]  # one sentence is enough to see that the document was read


class DemoClient:
    def __init__(self, address: str, key: str, instruction: str, document: str) -> None:
        self._client = genai.Client(api_key=key, http_options=types.HttpOptions(base_url=address))
        self._instruction = instruction
        self._document = types.Content(role="user", parts=[types.Part(text=document)])
        self.model = served_model(self._client)

    def create_cache(self, ttl_seconds: int) -> CacheHandle:
        cache = self._client.caches.create(
            model=self.model,
            config=types.CreateCachedContentConfig(
                display_name="the handbook",
                system_instruction=self._instruction,
                contents=[self._document],
                ttl=f"{ttl_seconds}s",
            ),
        )
        assert cache.name is not None
        assert cache.usage_metadata is not None
        return CacheHandle(cache.name, cache.usage_metadata.total_token_count or 0)

    def delete_cache(self, cache: CacheHandle) -> None:
        self._client.caches.delete(name=cache.name)

    def ask(self, question: str, cache: CacheHandle | None) -> Answer:
        """Stream an answer, greedily: with a cache only the question travels, without one all of it."""
        asked = types.Content(role="user", parts=[types.Part(text=question)])
        config = types.GenerateContentConfig(
            temperature=0, max_output_tokens=MAX_OUTPUT_TOKENS, stop_sequences=SENTENCE_ENDS
        )
        if cache is None:
            config.system_instruction = self._instruction
            contents = [self._document, asked]
        else:
            config.cached_content = cache.name
            contents = [asked]
        started = time.perf_counter()
        first_text_s = None
        text = ""
        usage = types.GenerateContentResponseUsageMetadata()
        for chunk in self._client.models.generate_content_stream(
            model=self.model, contents=list(contents), config=config
        ):
            if first_text_s is None and chunk.text:
                first_text_s = time.perf_counter() - started
            text += chunk.text or ""
            usage = chunk.usage_metadata or usage
        if first_text_s is None:
            raise RuntimeError(f"the model gave no text for {question!r}")
        return Answer(
            question=question,
            text=" ".join(text.split()),
            first_text_s=first_text_s,
            prompt_tokens=usage.prompt_token_count or 0,
            cached_tokens=usage.cached_content_token_count or 0,
        )


def served_model(client: genai.Client) -> str:
    """The name of the one model that a server serves; whatever else it lists are aliases."""
    for model in client.models.list():
        if model.name is not None:
            return model.name.removeprefix("models/")
    raise RuntimeError("the server lists no model")
