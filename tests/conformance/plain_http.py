"""The same operations with plain HTTP, as somebody with curl would write them; and that without any client's help."""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from tests.conformance.refusal import Refusal
from tests.conformance.servers import TIMEOUT_SECONDS

Json = dict[str, Any]

_OUTSIDE_GENERATION_CONFIG = {
    "cachedContent",
    "systemInstruction",
    "tools",
    "toolConfig",
    "safetySettings",
    "labels",
    "serviceTier",
}


@dataclass
class PlainHttp:
    name: str = "rest"

    _http: httpx.Client | None = None

    @property
    def http(self) -> httpx.Client:
        assert self._http is not None, "open() comes first"
        return self._http

    def open(self) -> None:
        self._http = self._http or httpx.Client(timeout=TIMEOUT_SECONDS)

    def call(self, options: Json, operation: str, arguments: Json, leave_after: int = 0) -> list[Any]:
        config = dict(arguments.get("config", {}))
        http_options = options["httpOptions"] | config.pop("httpOptions", {})
        if isinstance(config.get("systemInstruction"), str):  # as the SDKs do with a text
            config["systemInstruction"] = {"parts": [{"text": config["systemInstruction"]}]}
        method, path, body = written(operation, {**arguments, "config": config})
        address = f"{http_options['baseUrl'].rstrip('/')}/{http_options.get('apiVersion', 'v1beta')}/{path}"
        headers = {"x-goog-api-key": options["apiKey"], **http_options.get("headers", {})}
        if operation.endswith(".list"):
            return self._paged(address, headers, config)
        if operation.endswith("_stream"):
            return self._streamed(address, headers, body, leave_after)
        return [checked(self.http.request(method, address, headers=headers, json=body))]

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    def _paged(self, address: str, headers: dict[str, str], query: Json) -> list[Any]:
        found: list[Any] = []
        while True:
            page = checked(self.http.get(address, headers=headers, params=query))
            found += page.get(address.rpartition("/")[2], [])
            if "nextPageToken" not in page:
                return found
            query = {**query, "pageToken": page["nextPageToken"]}

    def _streamed(self, address: str, headers: dict[str, str], body: object, leave_after: int) -> list[Any]:
        events: list[Any] = []
        with self.http.stream("POST", address, headers=headers, json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                checked(answer)
            for line in filter(None, answer.iter_lines()):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise refusal(event, events)
                events.append(event)
                if len(events) == leave_after:
                    break
        return events


def written(operation: str, given: Json) -> tuple[str, str, Json | None]:
    """Method, path and body of a request."""
    cache = _full("cachedContents/", given.get("name", ""))
    model = _full("models/", given.get("model", ""))
    config, contents = given["config"], given.get("contents")
    return {
        "caches.create": ("POST", "cachedContents", {"model": model, **config}),
        "caches.get": ("GET", cache, None),
        "caches.update": ("PATCH", cache, config),
        "caches.delete": ("DELETE", cache, None),
        "caches.list": ("GET", "cachedContents", None),
        "models.list": ("GET", "models" if config.pop("queryBase", True) else "tunedModels", None),
        "models.get": ("GET", model, None),
        "models.count_tokens": ("POST", f"{model}:countTokens", {"contents": contents}),
        "models.generate_content": ("POST", f"{model}:generateContent", generate_body(contents, config)),
        "models.generate_content_stream": (
            "POST",
            f"{model}:streamGenerateContent?alt=sse",
            generate_body(contents, config),
        ),
    }[operation]


def generate_body(contents: object, config: Json) -> Json:
    """Sort a flat configuration, as the SDKs take it, into the request and its generationConfig."""
    beside = {name: value for name, value in config.items() if name in _OUTSIDE_GENERATION_CONFIG}
    inside = {name: value for name, value in config.items() if name not in _OUTSIDE_GENERATION_CONFIG}
    return {"contents": contents, "generationConfig": inside, **beside}


def checked(answer: httpx.Response) -> Any:
    body = answer.json()
    if answer.status_code != 200:
        raise refusal(body)
    return body


def refusal(body: Json, results: list[Any] | None = None) -> Refusal:
    error = body["error"]
    return Refusal("HTTP", error["message"], error["code"], error["status"], body, results or [])


def _full(collection: str, name: str) -> str:
    return quote(name if name.startswith(collection) else collection + name)
