"""What is told of a generation, from the events of its engine: piece by piece in a stream, all at once in a unary answer."""

from dataclasses import dataclass, field
from typing import Any

from api.dialects.gemini.responses import FINISH_REASONS, Usage, request_cost, usage_metadata
from api.generations import Generation
from core.messages import Cost, FinishedEvent, FinishReason, TokensEvent
from core.sampling import TokenLogprobs
from prompting.served_model import ServedModel


@dataclass(slots=True)
class Candidate:
    """What is known of one answer; text and logprobs only as long as they were not told."""

    index: int
    text: str = ""
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    output_tokens: int = 0
    logprob_sum: float = 0.0
    reason: FinishReason | None = None

    def take(self, event: TokensEvent) -> None:
        self.text += event.text
        self.output_tokens += len(event.token_ids)
        self.logprobs += zip(
            event.token_ids, event.logprobs, strict=False
        )  # there are none where none are asked
        self.logprob_sum += sum(each.chosen for each in event.logprobs)


class Answer:
    """A GenerateContentResponse in the making."""

    def __init__(self, generation: Generation, served: ServedModel) -> None:
        self._generation = generation
        self._served = served
        self.candidates = [Candidate(index) for index in range(generation.candidate_count)]
        self.is_whole = False
        self._implicit_tokens = 0
        self._cost: Cost | None = None

    def take(self, event: TokensEvent | FinishedEvent) -> list[Candidate]:
        """Gives the candidates of whom there is something to tell now."""
        self._implicit_tokens = event.implicit_cache_tokens
        if isinstance(event, FinishedEvent):
            for candidate, reason in zip(self.candidates, event.reasons, strict=True):
                candidate.reason = reason
            self.is_whole, self._cost = True, event.cost
            return self.candidates
        candidate = self.candidates[event.candidate]
        candidate.take(event)
        return [candidate] if candidate.text else []

    def tell(self, candidates: list[Candidate]) -> dict[str, Any]:
        """What was not told yet of these, and the counts so far; with the end, what it costs."""
        generation = self._generation
        told = {
            "candidates": [self._tell(candidate) for candidate in candidates],
            "usageMetadata": usage_metadata(self._usage()),
            "modelVersion": self._served.name,
            "responseId": generation.request_id,
        }
        return told if self._cost is None else told | {"cost": request_cost(self._cost)}

    def _usage(self) -> Usage:
        generation, implicit_tokens = self._generation, self._implicit_tokens
        return Usage(
            generation.prompt_tokens,
            generation.cached_tokens + implicit_tokens,
            sum(candidate.output_tokens for candidate in self.candidates),
            implicit_tokens,
        )

    def _tell(self, candidate: Candidate) -> dict[str, Any]:
        """There is always one part: the SDKs' chats drop a turn without."""
        told: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": candidate.text}]}}
        if candidate.reason is not None:
            told["finishReason"] = FINISH_REASONS[candidate.reason]
        told["index"] = candidate.index
        if self._generation.top_logprobs is not None:
            told |= self._tell_logprobs(candidate)
        candidate.text, candidate.logprobs = "", []
        return told

    def _tell_logprobs(self, candidate: Candidate) -> dict[str, Any]:
        """The tokens that this piece tells; their average only at the end, over the whole answer."""
        result: dict[str, Any] = {
            "chosenCandidates": [self._token(id_, each.chosen) for id_, each in candidate.logprobs]
        }
        if self._generation.top_logprobs:
            result["topCandidates"] = [
                {"candidates": [self._token(id_, logprob) for id_, logprob in each.top]}
                for _, each in candidate.logprobs
            ]
        told: dict[str, Any] = {"logprobsResult": result}
        if candidate.reason is not None and candidate.output_tokens:
            told["avgLogprobs"] = candidate.logprob_sum / candidate.output_tokens
        return told

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._served.format.token_text(token_id),
            "tokenId": token_id,
            "logProbability": logprob,
        }
