"""Speaks google-genai for the tests: one JSON line in, one out. It runs in an environment of the SDK alone.

Its one argument says which half of the SDK is used, `sync` or `aio`. A line names the operation, the client's options
and the arguments of the SDK's own method; the answer holds the SDK's result in camelCase, or the error it raised.
"""

import asyncio
import base64
import inspect
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google import genai
from google.genai import errors


async def main(mode: str) -> None:
    options, client = None, None
    say("ready")  # to import the SDK takes seconds, that no test should be charged with
    for line in sys.stdin:
        wish = json.loads(line)
        if client is None or wish["client"] != options:
            await close(client)
            options = wish["client"]
            client = genai.Client(api_key=options["apiKey"], http_options=options["httpOptions"])
        half = client.aio if mode == "aio" else client
        answer = await answered(half, wish)
        if wish["leaveAfter"]:  # aio streams stay open until their client is closed
            await close(client)
            client = None
        say(json.dumps(answer))
    await close(client)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def close(client: genai.Client | None) -> None:
    if client is not None:
        await client.aio.aclose()
        client.close()


async def answered(client: Any, wish: dict[str, Any]) -> dict[str, Any]:
    """What came, and what was raised; a stream may give both. Leaves a stream early where that is wished."""
    results: list[Any] = []
    try:
        async with aclosing(asked(client, wish["operation"], wish["arguments"])) as coming:
            async for each in coming:
                results.append(plain(each))
                if len(results) == wish["leaveAfter"]:
                    break
    except errors.APIError as error:
        return {"results": results, "error": typed(error)}
    except Exception as error:  # noqa: BLE001 -- whatever the SDK raises is what the test wants to know
        return {"results": results, "error": {"type": type(error).__name__, "message": str(error)}}
    return {"results": results}


async def asked(client: Any, operation: str, arguments: dict[str, Any]) -> AsyncGenerator[Any]:
    resource, _, name = operation.partition(".")
    result = getattr(getattr(client, resource), name)(**with_bytes(arguments))
    if inspect.isawaitable(result):
        result = await result
    if hasattr(result, "__aiter__"):
        async for each in result:
            yield each
    elif operation.endswith(("list", "stream")):
        for each in result:
            yield each
    else:
        yield result


def with_bytes(value: Any) -> Any:
    """Turn base64 into the bytes that a user of the SDK has."""
    if isinstance(value, list):
        return [with_bytes(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64decode(each) if name == "data" else with_bytes(each) for name, each in value.items()
    }


def plain(result: Any) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"sdk_http_response"})


def typed(error: errors.APIError) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "code": error.code,
        "status": error.status,
        "message": error.message,
        "body": error.details,
    }


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
