"""Routes, keys, statuses and deadlines."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, content, refused, text_of
from tests.conformance.prefix_proxy import prefixed
from tests.conformance.servers import ALIASES, TINY, Host, Key
from tests.e2e.customer import greedy, reason_of, user, without_cost

VERSIONS = ("v1", "v1beta", "v1alpha")
UNKNOWN = [
    ("GET", "/"),
    ("GET", "/v2/models"),
    ("GET", "/v1beta/nothing"),
    ("POST", "/v1beta/interactions"),
    ("POST", "/v1beta/models/tiny:predict"),
    ("POST", "/v1beta/cachedContents/a/b"),
]
WRONG_METHOD = [
    ("PUT", "/v1beta/cachedContents"),
    ("DELETE", "/v1beta/models"),
    ("PUT", f"/v1beta/models/{TINY}"),
]
# What changes from one call to the next.
PASSING = {"name", "createTime", "updateTime", "expireTime", "responseId", "nextPageToken"}


def lasting(value: Any) -> Any:
    """The value without what is new in every answer; what a cache costs grows by the second."""
    if isinstance(value, dict):
        passing = PASSING | {"cost"} if "expireTime" in value else PASSING
        return {name: lasting(each) for name, each in value.items() if name not in passing}
    return [lasting(each) for each in value] if isinstance(value, list) else value


def walk(http: httpx.Client, version: str) -> list[httpx.Response]:
    """Ask every route of a version once; the last two answers are refusals."""
    root, model = f"/{version}", f"/{version}/models/{TINY}"
    question = {"contents": [user("Where?")], "generationConfig": greedy(4)}
    cache_body = {"model": f"models/{TINY}", "contents": content(70, "walk")}
    created = http.post(f"{root}/cachedContents", json=cache_body)
    name = f"{root}/{created.json()['name']}"
    return [
        created,
        http.get(name),
        http.patch(name, json={"ttl": "60s"}),
        http.get(f"{root}/cachedContents"),
        http.post(f"{model}:generateContent", json=question),
        http.post(f"{model}:streamGenerateContent", json=question),
        http.post(f"{model}:streamGenerateContent?alt=sse", json=question),
        http.post(f"{model}:countTokens", json={"contents": question["contents"]}),
        http.get(f"{root}/models"),
        http.get(model),
        http.get(f"{root}/tunedModels"),
        http.delete(name),
        http.get(name),
        http.post(f"{root}/models/absent:countTokens", json={"contents": question["contents"]}),
    ]


def test_01_every_version_of_every_route_answers_alike(http: httpx.Client) -> None:
    told: dict[str, list[Any]] = {}
    for version in VERSIONS:
        answers = walk(http, version)
        told[version] = [
            (
                each.status_code,
                each.headers["content-type"],
                lasting(each.json()) if "json" in each.headers["content-type"] else len(each.content),
            )
            for each in answers
        ]
        assert f"API version {version}" in told[version][-1][2]["error"]["message"]
        told[version].pop()
    assert told["v1"] == told["v1beta"] == told["v1alpha"]
    assert [status for status, *_ in told["v1"]] == [200] * 12 + [403]


def test_01_every_version_answers_each_client_alike(client: Client) -> None:
    told = []
    for version in VERSIONS:
        versioned = client.using(apiVersion=version)
        cache = versioned.create(content(70, "version"))
        answer = versioned.ask("Where?", cachedContent=cache["name"])
        told.append(
            [lasting(answer), lasting(cache), versioned.model(TINY), versioned.count([user("Where?")])]
        )
    assert told[0] == told[1] == told[2]


def test_02_a_base_url_may_have_a_path_and_a_slash_at_its_end(client: Client) -> None:
    with prefixed(client.key.address) as address:
        behind = client.using(baseUrl=address)
        cache = behind.create(content(70, "prefix"))
        assert without_cost(client.get(cache["name"])) == without_cost(behind.get(cache["name"]))
        streamed = behind.stream("Where?", cachedContent=cache["name"])
        assert text_of(*streamed) == text_of(client.ask("Where?", cachedContent=cache["name"]))
        behind.delete(cache["name"])
    assert client.using(baseUrl=client.key.address + "/").list_caches() == []


def test_03_a_key_comes_in_a_header_the_query_or_as_bearer(key: Key) -> None:
    def status(headers: dict[str, str], **query: str) -> int:
        return httpx.get(f"{key.address}/v1/models", headers=headers, params=query).status_code

    bearer = {"authorization": f"Bearer {key.secret}"}
    for headers, query in (
        ({"x-goog-api-key": key.secret}, {}),
        ({}, {"key": key.secret}),
        (bearer, {}),
        ({"x-goog-api-key": key.secret}, {"key": "wrong"}),
        (bearer, {"key": key.secret}),
    ):
        assert status(headers, **query) == 200, (headers, query)
    assert status({"x-goog-api-key": "wrong"}, key=key.secret) == 400
    assert status(bearer, key="wrong") == 400
    assert status({"authorization": "Bearer wrong"}) == 401


def test_04_no_key_is_forbidden(key: Key) -> None:
    answer = httpx.get(f"{key.address}/v1/cachedContents")
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (403, "PERMISSION_DENIED")
    assert error["message"].startswith("Method doesn't allow unregistered callers")


def test_04_a_wrong_key_is_invalid(client: Client) -> None:
    other_end = "b" if client.key.secret.endswith("a") else "a"
    for secret in ("wrong", client.key.secret[:-1] + other_end):
        wrong = replace(client, key=replace(client.key, secret=secret))
        for refusal in (refused(wrong.list_caches), refused(wrong.ask, "Where?")):
            assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")
            assert refusal.reason == "API_KEY_INVALID"


def test_05_every_success_is_200_with_json_or_events(http: httpx.Client) -> None:
    *answers, _, _ = walk(http, "v1beta")
    for answer in answers:
        assert answer.status_code == 200
        is_stream = answer.url.query == b"alt=sse"
        kind = "text/event-stream" if is_stream else "application/json"
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert is_stream or isinstance(answer.json(), dict | list)


def refusals(http: httpx.Client, key: Key) -> list[tuple[httpx.Response, int, str]]:
    """Answers of every kind of error that can be had at once, with the status that each should have."""
    generate = f"/v1beta/models/{TINY}:generateContent"
    cache = {"model": f"models/{TINY}", "contents": content(70, "refused")}
    slow = {"contents": [user("Where?")], "generationConfig": greedy(3500)}
    return [
        *((http.request(method, path), 404, "NOT_FOUND") for method, path in UNKNOWN),
        *((http.request(method, path), 405, "UNIMPLEMENTED") for method, path in WRONG_METHOD),
        (http.post(generate, content=b"{"), 400, "INVALID_ARGUMENT"),
        (http.post(generate, json={"foo": 1}), 400, "INVALID_ARGUMENT"),
        (http.post(generate, json={"contents": []}), 400, "INVALID_ARGUMENT"),
        (http.post(generate, json=slow, headers={"x-server-timeout": "1"}), 504, "DEADLINE_EXCEEDED"),
        (http.get("/v1beta/cachedContents/absent"), 403, "PERMISSION_DENIED"),
        (http.get("/v1beta/models/absent"), 404, "NOT_FOUND"),
        (http.post("/v1beta/cachedContents", json={**cache, "model": "absent"}), 404, "NOT_FOUND"),
        (http.post("/v1beta/cachedContents", content=b" " * (33 << 20)), 413, "INVALID_ARGUMENT"),
        (httpx.get(f"{key.address}/v1beta/models"), 403, "PERMISSION_DENIED"),
        (http.get("/v1beta/models", headers={"x-goog-api-key": "wrong"}), 400, "INVALID_ARGUMENT"),
        (
            httpx.get(f"{key.address}/v1beta/models", headers={"authorization": "Bearer wrong"}),
            401,
            "UNAUTHENTICATED",
        ),
    ]


def test_06_07_every_error_is_the_envelope_with_its_own_status(http: httpx.Client, key: Key) -> None:
    for answer, status, canonical in refusals(http, key):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].partition(";")[0] == "application/json"
        assert answer.content.startswith(b'{"error":'), answer.text
        error = answer.json()["error"]
        assert (error["code"], error["status"]) == (status, canonical)
        assert error["message"]
        assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"


def test_08_work_ends_with_the_time_that_a_client_gives_it(client: Client) -> None:
    hurried = {"headers": {"X-Server-Timeout": "1"}}
    refusal = refused(client.ask, "Tell me all.", maxOutputTokens=3500, httpOptions=hurried)
    assert (refusal.code, refusal.status, refusal.reason) == (504, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    assert text_of(client.ask("Where?", httpOptions={"headers": {"X-Server-Timeout": "60"}}))


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon"])
def test_08_a_deadline_that_is_none_is_told(http: httpx.Client, value: str) -> None:
    body = {"contents": [user("Where?")], "generationConfig": greedy(2)}
    answer = http.post(
        f"/v1beta/models/{TINY}:generateContent", json=body, headers={"x-server-timeout": value}
    )
    assert (answer.status_code, reason_of(answer)) == (400, "INVALID_ARGUMENT")


def test_09_a_model_is_named_with_and_without_models_and_with_a_slash(client: Client) -> None:
    names = (TINY, *ALIASES)
    answers = [client.ask("Where?", model=name) for each in names for name in (each, f"models/{each}")]
    assert len({text_of(answer) for answer in answers}) == 1
    assert {answer["modelVersion"] for answer in answers} == {TINY}
    for name in names:
        assert client.model(name) == client.model(f"models/{name}") == client.model(TINY)
    for name in names:
        assert client.create(content(70, name), model=name)["model"] == f"models/{TINY}"


def test_09_the_body_may_name_the_model_too(http: httpx.Client, tiny_host: Host) -> None:
    for named in (TINY, f"models/{TINY}", "org/served", "models/org/served"):
        body = {"model": named, "contents": [user("Where?")], "generationConfig": greedy(2)}
        assert http.post("/v1beta/models/org/served:generateContent", json=body).status_code == 200
