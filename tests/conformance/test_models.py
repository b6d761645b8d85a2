"""Models and counting."""

from typing import Any

import httpx

from tests.conformance.client import Client, content, refused
from tests.conformance.servers import TINY, TINY_CONTEXT_TOKENS
from tests.e2e.customer import document, greedy, user

COUNT = f"/v1beta/models/{TINY}:countTokens"
METHODS = ["generateContent", "streamGenerateContent", "countTokens", "createCachedContent"]


def methods(model: dict[str, Any]) -> Any:
    """Python's SDK has a name of its own for them."""
    return model.get("supportedActions") or model.get("supportedGenerationMethods")


def prompt_tokens(http: httpx.Client, request: dict[str, Any]) -> int:
    body = {**request, "generationConfig": greedy(1)}
    answer = http.post(f"/v1beta/models/{TINY}:generateContent", json=body).json()
    count: int = answer["usageMetadata"]["promptTokenCount"]
    return count


def test_74_a_model_shows_its_limits_and_methods(client: Client) -> None:
    (listed,) = client.models()
    assert listed == client.model(TINY)
    assert listed["name"] == f"models/{TINY}"
    assert listed["inputTokenLimit"] == TINY_CONTEXT_TOKENS - 1
    assert 0 < listed["outputTokenLimit"] <= TINY_CONTEXT_TOKENS
    assert methods(listed) == METHODS
    assert client.models(queryBase=False) == []


def test_74_sizes_that_clients_elsewhere_have_to_guess(http: httpx.Client) -> None:
    (model,) = http.get("/v1beta/models").json()["models"]
    assert model == http.get(f"/v1beta/models/{TINY}").json()
    assert model["minCacheTokens"] == 64
    assert model["kvBytesPerToken"] == 3 * 2 * 2 * 16 * 4  # layers, K and V, heads, head size, float32
    assert model["cacheTokenCapacity"] > TINY_CONTEXT_TOKENS
    too_small = {"model": TINY, "contents": [user(document(model["minCacheTokens"] // 4, "small"))]}
    assert http.post("/v1beta/cachedContents", json=too_small).status_code == 400


def test_75_an_unknown_model_is_told_with_version_and_method(client: Client) -> None:
    for version in ("v1", "v1beta"):
        versioned = client.using(apiVersion=version)
        for ask, method in (
            (versioned.ask, "generateContent"),
            (versioned.stream, "streamGenerateContent"),
            (versioned.count, "countTokens"),
        ):
            refusal = refused(ask, [user("Where?")], model="gemini-9")
            assert (refusal.code, refusal.status) == (404, "NOT_FOUND")
            assert refusal.message.startswith(
                f"models/gemini-9 is not found for API version {version}, or is not supported for {method}."
            )
        assert refused(versioned.model, "gemini-9").code == 404


def test_76_counts_are_those_of_the_answer(client: Client) -> None:
    contents = [user("Where?"), {"role": "model", "parts": [{"text": "Here."}]}, user("And then?")]
    counted = client.count(contents)["totalTokens"]
    prompt = client.ask(contents)["usageMetadata"]["promptTokenCount"]
    opening = prompt - counted  # of the model's turn
    assert 0 < opening < 10
    assert (
        client.ask("Where?")["usageMetadata"]["promptTokenCount"] - opening
        == client.count([user("Where?")])["totalTokens"]
    )


def test_76_a_whole_request_counts_with_what_is_cached(http: httpx.Client) -> None:
    made = http.post("/v1beta/cachedContents", json={"model": TINY, "contents": content(70, "count")}).json()
    cached = made["usageMetadata"]["totalTokenCount"]
    request = {"model": f"models/{TINY}", "contents": [user("Where?")], "cachedContent": made["name"]}
    counted = http.post(COUNT, json={"generateContentRequest": request}).json()
    assert counted["cachedContentTokenCount"] == cached < counted["totalTokens"]
    assert counted["cacheTokensDetails"] == [{"modality": "TEXT", "tokenCount": cached}]
    assert counted["promptTokensDetails"] == [{"modality": "TEXT", "tokenCount": counted["totalTokens"]}]

    uncached = {"model": f"models/{TINY}", "contents": request["contents"]}
    whole = {**uncached, "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    counted = http.post(COUNT, json={"generateContentRequest": whole}).json()
    assert "cachedContentTokenCount" not in counted
    openings = [
        prompt_tokens(http, asked)
        - http.post(COUNT, json={"generateContentRequest": asked}).json()["totalTokens"]
        for asked in (uncached, whole, request)
    ]
    assert len(set(openings)) == 1

    both = {"contents": [user("Where?")], "generateContentRequest": request}
    assert http.post(COUNT, json=both).status_code == 400
    assert http.post(COUNT, json={}).status_code == 400
