"""The stock client, unchanged: what it sends is understood, what it reads is what was meant."""

from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from core.errors import Unavailable
from tests.api.harness import ALIAS, MODEL, Server, words
from tests.fakes.worker import Script


@pytest.fixture(params=["v1", "v1beta"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[genai.Client]:
    options = types.HttpOptions(base_url=server.url, api_version=request.param, timeout=20_000)
    client = genai.Client(api_key=server.key, http_options=options)
    yield client
    client.close()


def create(client: genai.Client, **config: Any) -> types.CachedContent:
    return client.caches.create(
        model=MODEL, config=types.CreateCachedContentConfig(contents=words(100), **config)
    )


class TestCaches:
    def test_live_and_are_seen(self, client: genai.Client) -> None:
        cache = create(client, display_name="Mine", ttl="300s", system_instruction="Be brief.")
        assert cache.usage_metadata is not None
        assert cache.create_time is not None
        assert cache.expire_time is not None
        assert (cache.expire_time - cache.create_time).total_seconds() == 300
        assert client.caches.get(name=str(cache.name)) == cache
        longer = client.caches.update(name=str(cache.name), config={"ttl": "600s"})
        assert longer.expire_time is not None
        assert (longer.expire_time - cache.expire_time).total_seconds() == 300
        client.caches.delete(name=str(cache.name))
        assert list(client.caches.list()) == []

    def test_are_paged_through(self, client: genai.Client) -> None:
        names = {create(client).name for _ in range(5)}
        found = [cache.name for cache in client.caches.list(config={"page_size": 2})]
        assert len(found) == 5
        assert set(found) == names

    def test_a_missing_one_is_a_client_error(self, client: genai.Client) -> None:
        with pytest.raises(errors.ClientError) as caught:
            client.caches.get(name="absent")
        assert (caught.value.code, caught.value.status) == (403, "PERMISSION_DENIED")
        assert caught.value.message == "CachedContent not found (or permission denied)"


class TestAnswers:
    def test_against_a_cache_that_an_alias_made(self, client: genai.Client) -> None:
        cache = client.caches.create(model=ALIAS, config={"contents": words(100), "ttl": "60s"})
        for model in (ALIAS, str(cache.model)):
            answer = client.models.generate_content(
                model=model,
                contents="What?",
                config={"cached_content": cache.name, "temperature": 0, "top_k": 3},
            )
            assert answer.text == "Hello world"
            assert answer.usage_metadata is not None
            assert cache.usage_metadata is not None
            assert answer.usage_metadata.cached_content_token_count == cache.usage_metadata.total_token_count
            assert answer.model_version == MODEL

    def test_stream(self, client: genai.Client) -> None:
        chunks = list(client.models.generate_content_stream(model=MODEL, contents="What?"))
        assert "".join(str(chunk.text) for chunk in chunks) == "Hello world"
        assert chunks[-1].candidates is not None
        assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
        assert len({chunk.response_id for chunk in chunks}) == 1

    def test_an_error_in_a_stream_is_raised_by_its_kind(self, server: Server, client: genai.Client) -> None:
        server.script = Script(error=Unavailable("The engine is gone."))
        chunks = client.models.generate_content_stream(model=MODEL, contents="What?")
        assert [next(chunks).text, next(chunks).text] == ["Hello", " world"]
        with pytest.raises(errors.ServerError) as caught:
            next(chunks)
        assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")

    def test_an_error_before_it_too(self, server: Server, client: genai.Client) -> None:
        server.script = Script(refusal=Unavailable("Draining."))
        with pytest.raises(errors.ServerError, match="Draining"):
            next(iter(client.models.generate_content_stream(model=MODEL, contents="What?")))

    def test_every_text_arrives_intact(self, server: Server, client: genai.Client) -> None:
        hostile = "a\u2028b\u2029c\u0085d\re\nf\x00\x1fg\n\ndata: {}\n\n😀"
        server.script = Script(pieces=(((1,), hostile),))
        chunks = client.models.generate_content_stream(model=MODEL, contents="What?")
        assert "".join(str(chunk.text) for chunk in chunks) == hostile

    def test_a_chat_goes_on_after_a_streamed_answer(self, server: Server, client: genai.Client) -> None:
        """The client keeps every piece as a turn of its own; the prompt has the answer as one."""
        chat = client.chats.create(model=MODEL)
        assert "".join(str(chunk.text) for chunk in chat.send_message_stream("One")) == "Hello world"
        assert chat.send_message("Two").text == "Hello world"
        turns = [
            types.Content(role=role, parts=[types.Part(text=text)])
            for role, text in [("user", "One"), ("model", "Hello world"), ("user", "Two")]
        ]
        client.models.generate_content(model=MODEL, contents=turns)
        _, after_stream, at_once = server.worker.generated
        assert after_stream.token_ids == at_once.token_ids

    def test_what_is_not_built_is_a_client_error(self, client: genai.Client) -> None:
        with pytest.raises(errors.ClientError, match="response_mime_type"):
            client.models.generate_content(
                model=MODEL, contents="What?", config={"response_mime_type": "application/json"}
            )


def test_models_and_counts(client: genai.Client) -> None:
    models = list(client.models.list())
    assert [model.name for model in models] == ["models/tiny"]
    model = client.models.get(model=ALIAS)
    assert model.supported_actions is not None
    assert "createCachedContent" in model.supported_actions
    counted = client.models.count_tokens(model=MODEL, contents="Hello there")
    answered = client.models.generate_content(model=MODEL, contents="Hello there")
    assert counted.total_tokens is not None
    assert answered.usage_metadata is not None
    assert answered.usage_metadata.prompt_token_count == counted.total_tokens + 4


@pytest.mark.parametrize(("key", "code"), [("wrong", 400), ("hs_x", 400)])
def test_a_bad_key_is_a_client_error(server: Server, key: str, code: int) -> None:
    with (
        genai.Client(api_key=key, http_options=types.HttpOptions(base_url=server.url)) as client,
        pytest.raises(errors.ClientError) as caught,
    ):
        client.caches.get(name="x")
    assert caught.value.code == code
