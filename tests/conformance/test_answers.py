"""What an answer is: where it stops, how it is drawn, and what is never in it."""

from typing import Any

import pytest

from tests.conformance.client import Client, refused, text_of
from tests.conformance.scripted_model import PIECES, TEXT


@pytest.mark.parametrize("stop", ["two", "\u2029", "漢", "e\u2028t"])
def test_66_a_stop_sequence_stops_and_is_not_shown(scripted: Client, stop: str) -> None:
    expected, found, _ = TEXT.partition(stop)
    assert found
    settings: dict[str, Any] = {"maxOutputTokens": 100, "stopSequences": ["never said", stop]}
    for chunks in ([scripted.ask("Go.", **settings)], scripted.stream("Go.", **settings)):
        assert text_of(*chunks) == expected
        assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"


def test_66_five_stop_sequences_are_the_most(client: Client) -> None:
    assert text_of(client.ask("Where?", stopSequences=[f"never {number}" for number in range(5)]))
    refusal = refused(client.ask, "Where?", stopSequences=[f"never {number}" for number in range(6)])
    assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")
    assert refusal.detail("BadRequest")["fieldViolations"][0]["field"] == "generation_config.stop_sequences"


def test_67_the_reason_tells_what_ended_an_answer(scripted: Client) -> None:
    cut = scripted.ask("Go.", maxOutputTokens=5)
    assert cut["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert cut["usageMetadata"]["candidatesTokenCount"] == 5
    assert text_of(cut) == b"".join(PIECES[:5]).decode("utf-8", "replace")
    whole = scripted.ask("Go.", maxOutputTokens=100)
    assert whole["candidates"][0]["finishReason"] == "STOP"


def test_68_a_seed_repeats_an_answer(built_in: Client) -> None:
    def drawn(seed: int) -> str:
        return text_of(
            built_in.ask("Invent a name for a boat.", temperature=1.5, topK=1000, topP=1, seed=seed)
        )

    first = drawn(1)
    assert drawn(1) == first
    assert {drawn(2), drawn(3)} != {first}


def logprobs(chunks: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """Chosen and likeliest tokens of an answer, or of all events of a stream."""
    results = [chunk["candidates"][0].get("logprobsResult", {}) for chunk in chunks]
    return (
        [each for result in results for each in result.get("chosenCandidates", [])],
        [each["candidates"] for result in results for each in result.get("topCandidates", [])],
    )


def test_70_there_is_a_log_probability_for_each_token(client: Client) -> None:
    settings: dict[str, Any] = {"responseLogprobs": True, "logprobs": 3, "maxOutputTokens": 6}
    unary, streamed = [client.ask("Where?", **settings)], client.stream("Where?", **settings)
    for chunks in (unary, streamed):
        chosen, top = logprobs(chunks)
        assert len(chosen) == len(top) == chunks[-1]["usageMetadata"]["candidatesTokenCount"] == 6
        assert {len(each) for each in top} == {3}
        # Greedy: what was chosen is the likeliest.
        assert [each["tokenId"] for each in chosen] == [each[0]["tokenId"] for each in top]
        assert all(each["logProbability"] <= 0 for each in chosen)
    average = sum(each["logProbability"] for each in logprobs(unary)[0]) / 6
    assert unary[0]["candidates"][0]["avgLogprobs"] == pytest.approx(average, abs=1e-5)


def test_70_they_must_be_asked_for_as_a_whole(client: Client) -> None:
    for settings in ({"logprobs": 3}, {"logprobs": 3, "responseLogprobs": False}):
        refusal = refused(client.ask, "Where?", **settings)
        assert (refusal.code, refusal.status) == (400, "INVALID_ARGUMENT")
        assert "response_logprobs" in refusal.message or "responseLogprobs" in refusal.message
    for count in (-1, 21):
        assert refused(client.ask, "Where?", responseLogprobs=True, logprobs=count).code == 400


def test_72_73_nothing_is_in_an_answer_that_confuses_clients(client: Client) -> None:
    for settings in ({}, {"maxOutputTokens": 1}, {"candidateCount": 2}, {"stopSequences": ["e"]}):
        answers = [client.ask("Where?", **settings), *client.stream("Where?", **settings)]
        for answer in answers:
            assert not {"promptFeedback", "continuationToken"} & answer.keys()
            assert answer["candidates"]
            for candidate in answer["candidates"]:
                assert candidate["content"]["parts"]
                assert candidate.get("finishReason", "STOP") in {"STOP", "MAX_TOKENS"}


def test_72_an_answer_without_text_has_a_candidate_too(scripted: Client) -> None:
    events = scripted.stream("Go.", maxOutputTokens=100, stopSequences=[TEXT[0]])
    assert text_of(*events) == ""
    assert [event["candidates"][0]["finishReason"] for event in events] == ["STOP"]
