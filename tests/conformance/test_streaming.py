"""Streams: their bytes, their events, their failures, and who hangs up."""

import json
from typing import Any

import httpx
import pytest

from models.usage import UsageState
from tests.conformance.client import Client, content, refused, text_of
from tests.conformance.scripted_model import PIECES, TEXT
from tests.conformance.servers import SCRIPTED, TINY, Host, Key
from tests.e2e.customer import document, greedy, user
from tests.e2e.processes import wait_until

STREAM = f"/v1beta/models/{TINY}:streamGenerateContent"
ENDLESS = 3500
HURRIED = {"headers": {"X-Server-Timeout": "1"}}
# At one token a step and twenty fillers a second, so long a prompt is a long silence.
LONG_PROMPT = document(250, "silence")


def body(tokens: int = 8, question: str = "Where?") -> dict[str, Any]:
    return {"contents": [user(question)], "generationConfig": greedy(tokens)}


def sse(http: httpx.Client, request: dict[str, Any], **headers: str) -> bytes:
    answer = http.post(STREAM, params={"alt": "sse"}, json=request, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    return answer.content


def assert_framed(raw: bytes) -> None:
    """Nothing but lines of data, each followed by a blank one."""
    assert raw.endswith(b"\n\n")
    assert b"\r" not in raw
    for line in raw.split(b"\n"):
        assert line == b"" or line.startswith(b"data: {"), line
        if line:
            json.loads(line.removeprefix(b"data: "))


def test_55_56_an_event_stream_is_data_and_blank_lines(http: httpx.Client) -> None:
    raw = sse(http, body())
    assert_framed(raw)
    assert raw.count(b"data: ") == raw.count(b"\n\n") >= 2
    assert b"[DONE]" not in raw


def test_55_56_so_is_one_that_fails(http: httpx.Client) -> None:
    raw = sse(http, body(ENDLESS), **{"x-server-timeout": "1"})
    assert_framed(raw)
    assert raw.rpartition(b"data: ")[2].startswith(b'{"error":')


def test_57_blank_lines_fill_a_silence(slow_host: Host) -> None:
    with slow_host.project() as key, key.http() as http:
        raw = sse(http, body(question=LONG_PROMPT))
    silence, _, rest = raw.partition(b"data: ")
    assert len(silence) >= 2
    assert set(silence) == set(b"\n")
    assert_framed(b"data: " + rest)


def test_57_each_client_reads_on_after_them(slow: Client) -> None:
    events = slow.stream(LONG_PROMPT)
    assert events[-1]["usageMetadata"]["candidatesTokenCount"] == 8
    assert text_of(*events)


def test_58_every_event_is_whole(client: Client) -> None:
    name = client.create(content(70, "events"))["name"]
    events = client.stream("Where?", cachedContent=name, maxOutputTokens=20)
    assert len(events) > 2
    for event in events:
        (candidate,) = event["candidates"]
        assert candidate["content"]["role"] == "model"
        assert candidate["content"]["parts"]
        assert candidate["index"] == 0
        assert event["modelVersion"] == TINY
        assert event["usageMetadata"]["promptTokenCount"] > 70
    for event in events[:-1]:
        assert text_of(event) != ""
    assert len({event["responseId"] for event in events}) == 1


def test_59_the_last_event_has_the_finish_reason(client: Client) -> None:
    events = client.stream("Where?", maxOutputTokens=12)
    reasons = [event["candidates"][0].get("finishReason") for event in events]
    assert reasons == [None] * (len(events) - 1) + ["MAX_TOKENS"]


def test_59_each_candidate_has_one(client: Client) -> None:
    events = client.stream("Where?", maxOutputTokens=6, candidateCount=3, temperature=1, seed=5)
    ends = [
        candidate["index"]
        for event in events
        for candidate in event["candidates"]
        if candidate.get("finishReason")
    ]
    assert sorted(ends) == [0, 1, 2]
    assert any(candidate.get("finishReason") for candidate in events[-1]["candidates"])


def test_60_every_event_counts_and_the_last_counts_as_the_unary_call(client: Client) -> None:
    cache = client.create(content(70, "totals"))
    events = client.stream("Where?", cachedContent=cache["name"], maxOutputTokens=12)
    for event in events:
        cached = event["usageMetadata"]["cachedContentTokenCount"]
        assert cached == cache["usageMetadata"]["totalTokenCount"]
    produced = [event["usageMetadata"].get("candidatesTokenCount", 0) for event in events]
    assert produced == sorted(produced)
    unary = client.ask("Where?", cachedContent=cache["name"], maxOutputTokens=12)
    assert events[-1]["usageMetadata"] == unary["usageMetadata"]


def test_61_a_stream_tells_what_the_unary_call_tells(built_in: Client) -> None:
    drawn: dict[str, Any] = {"temperature": 1, "seed": 11, "maxOutputTokens": 10}
    streamed = built_in.stream("Name three rivers.", **drawn)
    assert text_of(*streamed) == text_of(built_in.ask("Name three rivers.", **drawn)) != ""


def test_61_no_character_is_split(scripted: Client) -> None:
    assert sum("\ufffd" in piece.decode("utf-8", "replace") for piece in PIECES) > 10  # each a part of one
    texts = [text_of(event) for event in scripted.stream("Go.", maxOutputTokens=100)]
    assert "".join(texts) == TEXT
    assert not any("\ufffd" in text for text in texts)


def test_62_a_failure_after_the_first_event_is_an_error_of_the_client(client: Client) -> None:
    refusal = refused(client.stream, "Tell me all.", maxOutputTokens=ENDLESS, httpOptions=HURRIED)
    assert len(refusal.results) > 1
    assert text_of(*refusal.results)
    assert (refusal.code, refusal.status, refusal.reason) == (504, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")


def test_62_so_is_one_after_a_filler(slow: Client) -> None:
    refusal = refused(slow.stream, document(3900, "late"), httpOptions=HURRIED)
    assert refusal.results == []
    assert (refusal.code, refusal.status) == (504, "DEADLINE_EXCEEDED")


def test_63_without_sse_a_stream_is_one_array(http: httpx.Client) -> None:
    for query in ({}, {"alt": "json"}):
        answer = http.post(STREAM, params=query, json=body())
        assert answer.headers["content-type"].partition(";")[0] == "application/json"
        events = answer.json()
        assert len(events) > 1
        assert text_of(*events) == text_of(http.post(STREAM.replace("streamG", "g"), json=body()).json())


def test_63_an_error_is_the_element_of_one(http: httpx.Client) -> None:
    refused_at_once = http.post(STREAM, json={"contents": []})
    assert refused_at_once.status_code == 400
    (error,) = refused_at_once.json()
    assert error["error"]["code"] == 400
    failed = http.post(STREAM, json=body(ENDLESS), headers={"x-server-timeout": "1"}).json()
    assert len(failed) > 2
    assert list(failed[-1]) == ["error"]
    assert failed[-1]["error"]["code"] == 504


def test_64_who_leaves_a_stream_stops_it_and_owes_what_was_made(client: Client) -> None:
    taken = client.stream("Tell me all.", maxOutputTokens=ENDLESS, leave_after=3)
    assert len(taken) == 3
    books, project_id = client.host.books, client.key.project_id
    wait_until(lambda: books.generations(project_id)[0].state is not UsageState.RESERVED, "it is settled", 10)
    (row,) = books.generations(project_id)
    assert (row.state, row.end_reason) == (UsageState.FINAL, "CANCELLED")
    assert 3 <= row.output_tokens < ENDLESS / 4
    client.host.books.proven_bill(client.key.address, client.key.secret)


def test_65_what_ends_lines_elsewhere_arrives(scripted: Client) -> None:
    for character in ("\u2028", "\u2029", "\x85", "\x00", "\x0b", "\x0c", "\r", "\x1b", "\x1c", "\x7f"):
        assert character in TEXT
    assert text_of(*scripted.stream("Go.", maxOutputTokens=100)) == TEXT
    assert text_of(scripted.ask("Go.", maxOutputTokens=100)) == TEXT


def test_65_it_is_escaped_on_the_wire(scripted_host: Host) -> None:
    with scripted_host.project() as key, key.http() as http:
        path = STREAM.replace(TINY, SCRIPTED)
        for query in ({"alt": "sse"}, {}):
            raw = http.post(path, params=query, json=body(100)).content
            assert raw.isascii()
            assert not set(raw) & set(b"\x00\x0b\x0c\r\x1b\x1c\x7f")
            for escaped in (b"\\u2028", b"\\u2029", b"\\u0085", b"\\u0000", b"\\u001b"):
                assert escaped in raw


@pytest.mark.parametrize("tokens", range(1, len(PIECES)))
def test_65_wherever_an_answer_ends_it_is_text(scripted_host: Host, tokens: int) -> None:
    key: Key
    with scripted_host.project() as key, key.http() as http:
        answer = http.post(f"/v1/models/{SCRIPTED}:generateContent", json=body(tokens)).json()
    whole = b"".join(PIECES[:tokens]).decode("utf-8", "replace")
    assert text_of(answer) == whole
    assert answer["usageMetadata"]["candidatesTokenCount"] == tokens
