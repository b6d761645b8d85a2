import httpx
import pytest

from tests.api.harness import ALIAS, MODEL


def test_the_served_model_is_listed_with_what_clients_need(http: httpx.Client) -> None:
    body = http.get("/v1beta/models").json()
    assert list(body) == ["models"]
    model = body["models"][0]
    assert model["name"] == "models/tiny"
    assert (model["inputTokenLimit"], model["outputTokenLimit"], model["minCacheTokens"]) == (399, 399, 64)
    assert (model["kvBytesPerToken"], model["cacheTokenCapacity"]) == (46080, 6400)
    assert {"generateContent", "countTokens", "createCachedContent"} <= set(
        model["supportedGenerationMethods"]
    )


@pytest.mark.parametrize("name", [MODEL, ALIAS, "org/other"])
def test_a_model_is_got_by_its_name_or_an_alias(http: httpx.Client, name: str) -> None:
    assert http.get(f"/v1/models/{name}").json() == http.get("/v1/models").json()["models"][0]


@pytest.mark.parametrize("name", ["gemini-99", "org/unknown", "a/b/c"])
def test_an_unknown_one_is_404(http: httpx.Client, name: str) -> None:
    response = http.get(f"/v1alpha/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["message"].startswith(
        f"models/{name} is not found for API version v1alpha"
    )


@pytest.mark.parametrize("method", ["embedContent", "batchGenerateContent", "predict"])
def test_a_method_that_no_model_has_is_404(http: httpx.Client, method: str) -> None:
    response = http.post(f"/v1/models/{MODEL}:{method}", json={})
    assert response.status_code == 404
    assert f"or is not supported for {method}." in response.json()["error"]["message"]


def test_there_is_one_page(http: httpx.Client) -> None:
    assert http.get("/v1/models", params={"pageSize": 5, "filter": "x"}).status_code == 200
    assert http.get("/v1/models", params={"pageToken": "x"}).status_code == 400
    assert http.get("/v1/models", params={"pageSize": -5}).status_code == 400


def test_nothing_is_tuned(http: httpx.Client) -> None:
    assert http.get("/v1/tunedModels").json() == {}
