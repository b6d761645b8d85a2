"""A client as a test uses it: one driver, one server, one project's key."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tests.conformance.drivers import Driver
from tests.conformance.refusal import Refusal
from tests.conformance.servers import Host, Key
from tests.e2e.customer import document, user

Json = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """http_options: more of the client's own, such as apiVersion or headers."""

    driver: Driver
    host: Host
    key: Key
    http_options: Json = field(default_factory=dict)

    def using(self, **http_options: Any) -> "Client":
        return replace(self, http_options=self.http_options | http_options)

    def call(self, operation: str, leave_after: int = 0, **arguments: Any) -> list[Any]:
        http_options = {"baseUrl": self.key.address, **self.http_options}
        options = {"apiKey": self.key.secret, "httpOptions": http_options}
        return self.driver.call(options, operation, arguments, leave_after)

    def one(self, operation: str, **arguments: Any) -> Json:
        (result,) = self.call(operation, **arguments)
        assert isinstance(result, dict)
        return result

    def create(self, contents: object = None, *, model: str | None = None, **config: Any) -> Json:
        """Create a cache of ten minutes, unless the configuration says otherwise; None leaves a field out."""
        given = {"contents": contents, "ttl": None if "expireTime" in config else "600s", **config}
        given = {name: value for name, value in given.items() if value is not None}
        return self.one("caches.create", model=model or self.host.model, config=given)

    def get(self, name: str) -> Json:
        return self.one("caches.get", name=name)

    def update(self, name: str, **config: Any) -> Json:
        return self.one("caches.update", name=name, config=config)

    def delete(self, name: str) -> Json:
        return self.one("caches.delete", name=name)

    def list_caches(self, **config: Any) -> list[Any]:
        return self.call("caches.list", config=config)

    def ask(self, question: object, *, model: str | None = None, **config: Any) -> Json:
        """Ask greedily, unless the configuration says otherwise."""
        return self.one("models.generate_content", **self._asked(question, model, config))

    def stream(
        self, question: object, *, model: str | None = None, leave_after: int = 0, **config: Any
    ) -> list[Any]:
        """Give all events, or as many as are taken before the stream is left."""
        asked = self._asked(question, model, config)
        return self.call("models.generate_content_stream", leave_after, **asked)

    def count(self, contents: object, *, model: str | None = None) -> Json:
        return self.one("models.count_tokens", model=model or self.host.model, contents=contents)

    def models(self, **config: Any) -> list[Any]:
        return self.call("models.list", config=config)

    def model(self, name: str) -> Json:
        return self.one("models.get", model=name)

    def _asked(self, question: object, model: str | None, config: Json) -> Json:
        contents = [user(question)] if isinstance(question, str) else question
        settings = {"temperature": 0, "maxOutputTokens": 8, **config}
        return {"model": model or self.host.model, "contents": contents, "config": settings}


def text_of(*chunks: Json) -> str:
    """The text of an answer, or of all events of a stream."""
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    return "".join(part["text"] for part in parts)


def content(tokens: int, seed: str) -> list[Json]:
    """Contents of about so many tokens, that no other seed gives."""
    return [user(document(tokens, seed))]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def refused(ask: Callable[..., object], *given: Any, **more: Any) -> Refusal:
    """The error of a call that must be refused."""
    try:
        answer = ask(*given, **more)
    except Refusal as refusal:
        return refusal
    raise AssertionError(f"answered: {answer}")
