"""Several answers, and log probabilities, as Gemini writes them."""

import json
from typing import Any

import httpx
import pytest

from core.messages import FinishReason
from core.sampling import TokenLogprobs
from tests.api.harness import MODEL, Server, user
from tests.fakes.worker import Piece, Script

UNARY = f"/v1/models/{MODEL}:generateContent"
STREAM = f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"
TWO = (Piece((1,), "One"), Piece((2, 3), "Uno", 1), Piece((4,), " two"), Piece((5,), " dos", 1))
LIKELY = TokenLogprobs(-0.25, ((9906, -0.25), (2, -1.5)))
UNLIKELY = TokenLogprobs(-2.75, ((1917, -0.5), (220, -2.75)))


def ask(http: httpx.Client, route: str = UNARY, **config: Any) -> httpx.Response:
    return http.post(route, json={"contents": [user("Hi")], "generationConfig": config})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


class TestCandidates:
    def test_each_has_its_index_and_all_tokens_are_counted(self, server: Server, http: httpx.Client) -> None:
        server.script = Script(pieces=TWO, reason=FinishReason.MAX_TOKENS)
        body = ask(http, candidateCount=2).json()
        assert [
            (each["index"], each["content"]["parts"][0]["text"], each["finishReason"])
            for each in body["candidates"]
        ] == [(0, "One two", "MAX_TOKENS"), (1, "Uno dos", "MAX_TOKENS")]
        assert body["usageMetadata"]["candidatesTokenCount"] == 5
        assert server.worker.generated[0].candidate_count == 2

    def test_in_a_stream_each_event_is_of_one_and_the_last_ends_all(
        self, server: Server, http: httpx.Client
    ) -> None:
        server.script = Script(pieces=TWO)
        found = events(ask(http, STREAM, candidateCount=2))
        told = [
            (each["index"], each["content"]["parts"][0]["text"], each.get("finishReason"))
            for event in found
            for each in event["candidates"]
        ]
        assert told == [
            (0, "One", None),
            (1, "Uno", None),
            (0, " two", None),
            (1, " dos", None),
            (0, "", "STOP"),
            (1, "", "STOP"),
        ]
        assert [event["usageMetadata"]["candidatesTokenCount"] for event in found] == [1, 3, 4, 5, 5]

    def test_no_more_than_run_at_once(self, http: httpx.Client) -> None:
        assert ask(http, candidateCount=4).status_code == 200
        response = ask(http, candidateCount=5)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["details"][0]["metadata"]["field"] == "generation_config.candidate_count"
        assert "runs 4 at once" in error["message"]

    @pytest.mark.parametrize("count", [0, 9, -1, 1.5])
    def test_one_to_eight(self, server: Server, http: httpx.Client, count: float) -> None:
        response = ask(http, candidateCount=count)
        assert response.status_code == 400
        assert "generation_config.candidate_count" in response.json()["error"]["message"]
        assert server.worker.sent == []


class TestLogprobs:
    SCRIPT = Script(pieces=(Piece((9906,), "Hello", 0, (LIKELY,)), Piece((220,), " ", 0, (UNLIKELY,))))

    def test_come_for_each_token_with_the_likeliest(self, server: Server, http: httpx.Client) -> None:
        server.script = self.SCRIPT
        (candidate,) = ask(http, responseLogprobs=True, logprobs=2).json()["candidates"]
        text = server.state.served_model.format.token_text

        def token(token_id: int, logprob: float) -> dict[str, Any]:
            return {"token": text(token_id), "tokenId": token_id, "logProbability": logprob}

        assert candidate["logprobsResult"] == {
            "chosenCandidates": [token(9906, -0.25), token(220, -2.75)],
            "topCandidates": [
                {"candidates": [token(9906, -0.25), token(2, -1.5)]},
                {"candidates": [token(1917, -0.5), token(220, -2.75)]},
            ],
        }
        assert candidate["avgLogprobs"] == -1.5
        assert server.worker.generated[0].top_logprobs == 2

    @pytest.mark.parametrize("config", [{}, {"logprobs": 0}])
    def test_without_a_number_only_what_was_chosen(
        self, server: Server, http: httpx.Client, config: dict[str, Any]
    ) -> None:
        server.script = self.SCRIPT
        (candidate,) = ask(http, responseLogprobs=True, **config).json()["candidates"]
        assert list(candidate["logprobsResult"]) == ["chosenCandidates"]
        assert server.worker.generated[0].top_logprobs == 0

    def test_in_a_stream_come_with_their_text_and_the_average_at_the_end(
        self, server: Server, http: httpx.Client
    ) -> None:
        pieces = (Piece((9906,), "", 0, (LIKELY,)), Piece((220,), "é", 0, (UNLIKELY,)))
        server.script = Script(pieces=pieces)
        found = [event["candidates"][0] for event in events(ask(http, STREAM, responseLogprobs=True))]
        assert [len(each["logprobsResult"]["chosenCandidates"]) for each in found] == [2, 0]
        assert ["avgLogprobs" in each for each in found] == [False, True]

    def test_are_not_there_where_nobody_asked(self, server: Server, http: httpx.Client) -> None:
        assert "logprobsResult" not in ask(http).json()["candidates"][0]
        assert server.worker.generated[0].top_logprobs is None

    @pytest.mark.parametrize("config", [{"logprobs": 3}, {"logprobs": 3, "responseLogprobs": False}])
    def test_a_number_alone_is_refused(self, http: httpx.Client, config: dict[str, Any]) -> None:
        response = ask(http, **config)
        assert response.status_code == 400
        assert response.json()["error"]["details"][0]["metadata"]["field"] == "generation_config.logprobs"

    @pytest.mark.trap("T44")
    @pytest.mark.parametrize("field", ["promptLogprobs", "echo"])
    def test_of_the_prompt_nobody_has_any(self, http: httpx.Client, field: str) -> None:
        """What was read and not computed has none."""
        config: dict[str, Any] = {"responseLogprobs": True, field: 1}
        response = ask(http, **config)
        assert response.status_code == 400
        assert field in response.json()["error"]["message"]

    @pytest.mark.parametrize("count", [-1, 21])
    def test_at_most_twenty(self, http: httpx.Client, count: int) -> None:
        assert ask(http, responseLogprobs=True, logprobs=count).status_code == 400


def test_penalties_and_seed_reach_the_engine(server: Server, http: httpx.Client) -> None:
    ask(http, presencePenalty=-2, frequencyPenalty=0.5, seed=-7)
    sampling = server.worker.generated[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.seed) == (-2, 0.5, -7)
