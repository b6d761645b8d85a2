"""Public cases of counts that were lost or doubled between an engine, an answer and a bill; docs/billing-cases.md lists all."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from models.ledger_entry import LedgerEntry, list_entries
from tests.api.harness import MODEL, Server, on_each_database, user, words
from tests.fakes.worker import Script

pytestmark = on_each_database

ASK, STREAM = f"/v1/models/{MODEL}:generateContent", f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"
CREATE = "/v1/cachedContents"
Create = Callable[..., dict[str, Any]]
PROMPT = {"input_tokens", "cache_read_tokens", "implicit_cache_read_tokens"}


def ask(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post(ASK, json={"contents": [user("Hi")]} | fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def stream(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = http.post(STREAM, json={"contents": [user("Hi")]} | fields)
    assert response.status_code == 200, response.text
    return [json.loads(block.removeprefix("data: ")) for block in response.text.split("\n\n") if block]


def charged(server: Server) -> list[LedgerEntry]:
    """All that the test's project owes, in the order in which it was posted."""
    with server.state.database.read() as session:
        return list(list_entries(session, server.project_id, 0, 1000))


def charged_for(server: Server, body: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """What the request of an answer is charged: quantity and nano-USD by meter."""
    prefix = f"{body['responseId']}:"
    return {
        str(each.meter): (each.quantity, each.amount_nano_usd)
        for each in charged(server)
        if each.dedupe_key.startswith(prefix)
    }


def test_a_stream_is_not_billed_as_if_nothing_were_cached(
    server: Server, http: httpx.Client, create_cache: Create
) -> None:
    """BerriAI/litellm#11789: streams charged cached tokens as new ones, about seven times as much. One row and one function charge
    both ways of asking: the same question owes the same.
    """
    cache = create_cache()
    server.script = Script(implicit_cache_tokens=5)
    whole = ask(http, cachedContent=cache["name"])
    streamed = stream(http, cachedContent=cache["name"])[-1]
    assert streamed["usageMetadata"] == whole["usageMetadata"]
    assert charged_for(server, streamed) == charged_for(server, whole)
    assert charged_for(server, whole)["cache_read_tokens"][0] == cache["usageMetadata"]["totalTokenCount"]


def test_implicit_reads_are_not_missing_from_what_is_charged(server: Server, http: httpx.Client) -> None:
    """BerriAI/litellm#16341: Gemini's implicit cached tokens were in the answer and not in the spend log. What the answer tells and
    what is charged come from the same count of the engine's.
    """
    server.script = Script(implicit_cache_tokens=5)
    body = ask(http)
    told = body["usageMetadata"]
    assert told["cachedContentTokenCount"] == told["implicitCachedTokenCount"] == 5
    owed = charged_for(server, body)
    assert owed["implicit_cache_read_tokens"][0] == 5
    assert owed["input_tokens"][0] == told["promptTokenCount"] - 5


def test_cached_tokens_are_not_dropped_where_pieces_of_a_stream_are_merged(
    server: Server, http: httpx.Client, create_cache: Create
) -> None:
    """langfuse/langfuse#13811: merging the pieces of a stream lost the cached tokens. Each piece tells the same count of the prompt,
    and the bill is made of what the engine says at the end, not of pieces.
    """
    cache = create_cache()
    server.script = Script(pieces=(((1,), "a"), ((2, 3), "b"), ((4,), "c")), implicit_cache_tokens=5)
    pieces = stream(http, cachedContent=cache["name"])
    told = {
        (each["usageMetadata"]["promptTokenCount"], each["usageMetadata"]["cachedContentTokenCount"])
        for each in pieces
    }
    owed = charged_for(server, pieces[-1])
    read = owed["cache_read_tokens"][0] + owed["implicit_cache_read_tokens"][0]
    assert told == {(read + owed["input_tokens"][0], read)}
    assert owed["output_tokens"][0] == pieces[-1]["usageMetadata"]["candidatesTokenCount"] == 4


def test_an_answer_that_was_kept_is_not_charged_again(server: Server, http: httpx.Client) -> None:
    """langfuse/langfuse#2112: an application's own cache answered, and the cost of a request was counted. Only what an engine did is
    charged: a create that is sent again under its key is answered with the cache there is, and owes nothing more.
    """
    body = {"model": MODEL, "contents": [user(words(100))]}
    answers = [http.post(CREATE, json=body, headers={"Idempotency-Key": "once"}) for _ in range(3)]
    assert len({answer.json()["name"] for answer in answers}) == 1
    assert [each.meter for each in charged(server)] == ["cache_write_tokens"]


def test_the_prompt_of_a_stream_is_not_counted_twice_by_an_estimate(
    server: Server, http: httpx.Client, create_cache: Create
) -> None:
    """Helicone/helicone#733: an estimate counted the prompt of a stream about twice. There is none: what is charged are the tokens
    that were sent to the engine, and those of the cache.
    """
    cache = create_cache()
    pieces = stream(http, cachedContent=cache["name"])
    sent = len(server.worker.generated[-1].token_ids) + cache["usageMetadata"]["totalTokenCount"]
    owed = charged_for(server, pieces[-1])
    assert sum(quantity for meter, (quantity, _) in owed.items() if meter in PROMPT) == sent
    assert {each["usageMetadata"]["promptTokenCount"] for each in pieces} == {sent}
