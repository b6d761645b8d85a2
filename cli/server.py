"""Asking a running server over HTTP, with a key, for what only a server can tell."""

import json
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from cli.addresses import url_host
from core.errors import InvalidArgument, Unavailable
from core.settings import Settings

_TIMEOUT_SECONDS = 120
_LARGEST_BYTES = 16 << 20


class ServerClient:
    """url: of the server, without a path. Raises InvalidArgument for what is refused, Unavailable where nobody answers."""

    def __init__(self, url: str, key: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument(
                f"{url} is no address of a server: write it as http://127.0.0.1:8080.", field="url"
            )
        self._url = url.rstrip("/")
        self._headers = {"x-goog-api-key": key, "content-type": "application/json"}

    def get(self, path: str) -> dict[str, Any]:
        return self._ask(path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._ask(path, json.dumps(body).encode())

    def _ask(self, path: str, body: bytes | None) -> dict[str, Any]:
        straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as for metrics
        request = urllib.request.Request(self._url + path, body, self._headers)  # noqa: S310 - http(s), see above
        try:
            with straight.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                found: dict[str, Any] = json.loads(answer.read(_LARGEST_BYTES))
        except HTTPError as error:
            raise InvalidArgument(_refusal(self._url, error)) from error
        except (OSError, HTTPException) as error:
            raise Unavailable(
                f"No server at {self._url} ({getattr(error, 'reason', error)}). Start `headstart serve`, or name where it "
                "answers with --url or HEADSTART_PORT."
            ) from error
        except ValueError as error:
            raise Unavailable(f"What answers at {self._url} is no Headstart server. Check --url.") from error
        return found


def default_url(settings: Settings) -> str:
    """Where a server of these settings answers."""
    if settings.port == 0:
        raise InvalidArgument(
            "HEADSTART_PORT is 0, so that each server chooses its own: name it with --url.", field="url"
        )
    return f"http://{url_host(settings.host)}:{settings.port}"


def _refusal(url: str, error: HTTPError) -> str:
    """The server's own words."""
    try:
        return str(json.loads(error.read(_LARGEST_BYTES))["error"]["message"])
    except (ValueError, LookupError, TypeError, OSError, HTTPException):
        return f"What answers at {url} refused with {error.code} {error.reason}. Check --url."
