"""Public cases of counts that were lost or doubled between an engine, an answer and a bill; docs/billing-cases.md lists all."""

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from billing import usage
from billing.price_book import load_price_book
from core.messages import FinishReason
from models.ledger_entry import LedgerEntry, list_entries
from tests.api.harness import MODEL, Server, on_each_database, user, words
from tests.fakes.worker import Piece, Script

pytestmark = on_each_database

ASK, STREAM = f"/v1/models/{MODEL}:generateContent", f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"
WAYS = (ASK, STREAM, f"/v1/models/{MODEL}:streamGenerateContent")
CREATE = "/v1/cachedContents"
PRICES = {
    str(price.meter): price.nano_usd_per_million for price in load_price_book(None).prices
}  # as the server's
Create = Callable[..., dict[str, Any]]
PROMPT = {"input_tokens", "cache_read_tokens", "implicit_cache_read_tokens"}


def ask(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    return pieces(http, ASK, **fields)[0]


def pieces(http: httpx.Client, route: str, **fields: Any) -> list[dict[str, Any]]:
    """An answer as it comes: whole, as events or as an array."""
    response = http.post(route, json={"contents": [user("Hi")]} | fields)
    assert response.status_code == 200, response.text
    if route == STREAM:
        return [json.loads(block.removeprefix("data: ")) for block in response.text.split("\n\n") if block]
    body = response.json()
    return body if isinstance(body, list) else [body]


def stream(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    return pieces(http, STREAM, **fields)


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
    all ways of asking: whatever is asked, and however the answer comes in pieces, the same question owes the same.
    """
    cache, draw = create_cache(), random.Random(11789)
    for _ in range(8):
        candidate_count = draw.randint(1, 3)
        fields: dict[str, Any] = {
            "contents": [user(words(draw.randint(20, 80)))],
            "generationConfig": {"candidateCount": candidate_count, "maxOutputTokens": draw.randint(1, 50)},
        }
        if draw.random() < 0.6:
            fields["cachedContent"] = cache["name"]
        server.script = Script(
            pieces=tuple(
                Piece(tuple(range(draw.randint(1, 9))), "word ", draw.randrange(candidate_count))
                for _ in range(draw.randint(0, 6))
            ),
            reason=draw.choice([FinishReason.STOP, FinishReason.MAX_TOKENS]),
            implicit_cache_tokens=draw.choice([0, draw.randint(1, 10)]),
        )
        answers = [pieces(http, route, **fields)[-1] for route in WAYS]
        whole = answers[0]
        for streamed in answers[1:]:
            assert streamed["usageMetadata"] == whole["usageMetadata"]
            assert streamed["cost"] == whole["cost"]
            assert charged_for(server, streamed) == charged_for(server, whole)
        read = charged_for(server, whole).get("cache_read_tokens", (0, 0))[0]
        assert read == (cache["usageMetadata"]["totalTokenCount"] if "cachedContent" in fields else 0)


@pytest.mark.parametrize("route", WAYS)
def test_the_cached_count_is_not_lost_on_the_wire(
    server: Server, http: httpx.Client, create_cache: Create, route: str
) -> None:
    """BerriAI/litellm#35127: a translation between API shapes lost it, and 0.86 USD were charged instead of 0.16625. From each of our
    answers the ledger's amounts can be computed; and where nothing was read the count is absent, which is not 0 tokens of one.
    """
    cache = create_cache()
    for implicit, name in ((5, cache["name"]), (0, cache["name"]), (5, None), (0, None)):
        server.script = Script(implicit_cache_tokens=implicit)
        body = pieces(http, route, **({} if name is None else {"cachedContent": name}))[-1]
        told, owed = body["usageMetadata"], charged_for(server, body)
        read = told.get("cachedContentTokenCount", 0)
        by_meter = {
            "cache_read_tokens": read - told.get("implicitCachedTokenCount", 0),
            "implicit_cache_read_tokens": told.get("implicitCachedTokenCount", 0),
            "input_tokens": told["promptTokenCount"] - read,
            "output_tokens": told["candidatesTokenCount"],
        }
        assert owed == {
            meter: (tokens, tokens * PRICES[meter] // 10**6) for meter, tokens in by_meter.items() if tokens
        }
        assert by_meter["cache_read_tokens"] == (
            0 if name is None else cache["usageMetadata"]["totalTokenCount"]
        )
        assert by_meter["implicit_cache_read_tokens"] == implicit
        counts = {"cachedContentTokenCount", "implicitCachedTokenCount", "cacheTokensDetails"}
        assert counts & told.keys() == (counts if read else set())


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


def test_a_client_that_hangs_up_loses_no_spend_and_a_zero_is_no_estimate(
    server: Server, http: httpx.Client
) -> None:
    """BerriAI/litellm#14457, #13245, #35958, #33736, #37558, #36008 and #37992: hanging up lost or cut spend, and an explicit zero
    was replaced by an estimate. A row is reserved at admission; what was put out until then is charged; 0 is a value; and what a
    process leaves behind that died is void by the next start, whatever is told of it later.
    """
    server.script = Script(hold_before=1)
    with http.stream("POST", STREAM, json={"contents": [user("Hi")]}) as response:
        first = json.loads(next(response.iter_lines()).removeprefix("data: "))
        assert charged(server) == []
    server.wait_for(lambda: bool(charged(server)))
    prompt = first["usageMetadata"]["promptTokenCount"]
    asked = {"input_tokens": (prompt, prompt * PRICES["input_tokens"] // 10**6)}
    assert charged_for(server, first) == asked | {"output_tokens": (1, PRICES["output_tokens"] // 10**6)}

    server.script = Script(pieces=())
    silent = ask(http)
    assert charged_for(server, silent) == asked
    assert "candidatesTokenCount" not in silent["usageMetadata"]

    server.script = Script(hold_before=0)
    with server.later(lambda: http.post(ASK, json={"contents": [user("Hi")]})) as answer:
        server.wait_for(lambda: server.worker.is_holding)
        with server.state.database.write() as session:
            assert usage.void_of_dead(session, "the next", server.clock.now()) >= 1
        server.worker.release.set()
        assert charged_for(server, answer.result().json()) == {}
