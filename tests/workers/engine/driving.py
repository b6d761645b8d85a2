"""An engine to be driven step by step from a test, without a clock: messages are left while it stands still."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import torch
from transformers import PreTrainedModel

from core.errors import AppError, Unavailable
from core.sampling import Sampling, TokenLogprobs
from tests.workers.engine.tiny import Oracle
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import EngineConfig, ModelShape
from workers.engine.engine import Engine
from workers.engine.model import Model
from workers.engine.segment import Segments
from workers.engine.sequence import Build, Ending, Sequence
from workers.engine.step import Step
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.host_store import HostStore
from workers.engine.tiers.manifest import KvFormat

Result = TypeVar("Result")
NAMESPACE = b"a project"
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
_PATIENCE_SECONDS = 60


class WatchedModel(Model):
    """A real model that calls `before` on the engine thread ahead of each forward, and keeps the logits of the last."""

    def __init__(self, module: PreTrainedModel) -> None:
        super().__init__(module)
        self.before: list[Callable[[Step], None]] = []
        self.logits_by_seat: dict[int | None, torch.Tensor] = {}

    def forward(self, step: Step) -> torch.Tensor:
        for look in list(self.before):
            look(step)
        logits = super().forward(step)
        rows = [row for row in step.rows if row.wants_logits]
        self.logits_by_seat = {row.seat: row_logits for row, row_logits in zip(rows, logits, strict=True)}
        return logits


@dataclass(eq=False)
class Answer:
    """What came of a request: its tokens, the logits they were drawn from, how it ended."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    endings: list[tuple[Ending, AppError | None]] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def ending(self) -> Ending:
        return self.outcome[0]

    @property
    def error(self) -> AppError | None:
        return self.outcome[1]

    @property
    def outcome(self) -> tuple[Ending, AppError | None]:
        """Wait until it has ended, which it must do once."""
        assert self.ended.wait(_PATIENCE_SECONDS), "neither answered nor refused"
        (outcome,) = self.endings
        return outcome

    def end(self, ending: Ending, error: AppError | None) -> None:
        self.endings.append((ending, error))
        self.ended.set()


class Driver:
    """One engine, the requests it was given, and what must hold of it between any two steps."""

    def __init__(
        self,
        module: PreTrainedModel,
        oracle: Oracle,
        *,
        disk: Path | None = None,
        disk_blocks: int = 10_000,
        host_blocks: int = 0,
        **config: Any,
    ) -> None:
        """disk: a folder for KV files, with room for so many blocks. host_blocks: of a second arena, as beside a GPU's."""
        self.oracle = oracle
        self.model = WatchedModel(module)
        self.config = engine_config(self.model.shape, **config)
        store = None if disk is None else open_disk(disk, self.model.shape, self.config, disk_blocks)
        block_bytes = BLOCK_TOKENS * self.model.shape.kv_bytes_per_token(self.config.dtype)
        host = HostStore(self.model.shape, self.config, host_blocks * block_bytes) if host_blocks else None
        self.engine = Engine(self.model, self.config, host, store)
        self.cache_tokens: dict[str, list[int]] = {}
        self.events: list[
            str
        ] = []  # in order: the request of each token drawn, the cache of each build that ended
        self.model.before.append(lambda _: self.engine._tree.check_integrity())
        self._asked: list[Answer] = []
        self.engine.start()

    def ask(
        self,
        token_ids: list[int],
        cache_id: str | None = None,
        *,
        request_id: str | None = None,
        max_output_tokens: int = 8,
        sampling: Sampling = GREEDY,
        stop_token_ids: frozenset[int] = frozenset(),
        on_token: Callable[[int], bool] = lambda _: False,
        top_logprobs: int | None = None,
        namespace: bytes | None = None,
    ) -> Answer:
        """namespace: whose automatic KV it may read and leave behind; None: nobody's."""
        (answer,) = self.ask_for_candidates(
            token_ids,
            cache_id,
            [sampling],
            request_id=request_id,
            max_output_tokens=max_output_tokens,
            stop_token_ids=stop_token_ids,
            on_token=on_token,
            top_logprobs=top_logprobs,
            namespace=namespace,
        )
        return answer

    def ask_for_candidates(
        self,
        token_ids: list[int],
        cache_id: str | None,
        samplings: list[Sampling],
        *,
        request_id: str | None = None,
        max_output_tokens: int = 8,
        stop_token_ids: frozenset[int] = frozenset(),
        on_token: Callable[[int], bool] = lambda _: False,
        top_logprobs: int | None = None,
        namespace: bytes | None = None,
    ) -> list[Answer]:
        """One request, an answer for each sampling."""
        name = request_id or f"request {len(self._asked)}"
        prompt = [*self.cache_tokens.get(cache_id or "", []), *token_ids]
        answers = [Answer(list(prompt)) for _ in samplings]

        def sequence(answer: Answer, sampling: Sampling) -> Sequence:
            def take(token: int, logprobs: TokenLogprobs | None) -> bool:
                self.events.append(name)
                answer.tokens.append(token)
                # The first candidate has computed the prompt for all of them.
                source = made if len(answer.tokens) > 1 else sequences[0]
                if source.seat is not None:  # it may have ended before them
                    answer.logits.append(self.model.logits_by_seat[source.seat])
                answer.logprobs.append(logprobs)
                return on_token(token)

            made = Sequence(
                request_id=name,
                token_ids=list(token_ids),
                cache_id=cache_id,
                sampling=sampling,
                max_output_tokens=max_output_tokens,
                stop_token_ids=stop_token_ids,
                on_token=take,
                on_end=answer.end,
                top_logprobs=top_logprobs,
                namespace=namespace,
                on_start=answer.reused.append,
            )
            return made

        sequences = [sequence(answer, each) for answer, each in zip(answers, samplings, strict=True)]
        sequences[0].siblings = sequences[1:]
        self.engine.submit(sequences[0])
        self._asked += answers
        return answers

    def start_build(
        self,
        cache_id: str,
        token_ids: list[int],
        *,
        is_rebuild: bool = False,
        is_urgent: bool = True,
        namespace: bytes = NAMESPACE,
    ) -> Answer:
        outcome = Answer(token_ids)
        self.cache_tokens[cache_id] = list(token_ids)

        def end(ending: Ending, error: AppError | None) -> None:
            self.events.append(cache_id)
            outcome.end(ending, error)

        self.engine.build(Build(cache_id, namespace, tuple(token_ids), [end], is_rebuild, is_urgent))
        self._asked.append(outcome)
        return outcome

    def build(self, cache_id: str, token_ids: list[int]) -> None:
        assert self.start_build(cache_id, token_ids).outcome == (Ending.BUILT, None)

    def drop(self, cache_id: str) -> None:
        self.cache_tokens.pop(cache_id, None)
        self.engine.drop(cache_id)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Whatever is asked for inside is there at once when the engine goes on."""
        standing, go_on = threading.Event(), threading.Event()

        def stand(_: Segments) -> None:
            standing.set()
            assert go_on.wait(_PATIENCE_SECONDS)

        future = self.engine.call(stand)
        assert standing.wait(_PATIENCE_SECONDS)
        try:
            yield
        finally:
            go_on.set()
            future.result(_PATIENCE_SECONDS)

    def at_step(self, number: int, action: Callable[[], object]) -> None:
        """Do something on the engine thread before the forward of the number-th step from now, counted from 0."""
        left = number

        def look(_: Step) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                action()

        self.model.before.append(look)

    def call(self, function: Callable[[], Result]) -> Result:
        """On the engine thread, between two steps."""
        return self.engine.call(lambda _: function()).result(_PATIENCE_SECONDS)

    def let_files_settle(self) -> None:
        """Wait until nothing is read or written any more, and nothing waits for that."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for _ in range(2):
            self.used_blocks()  # what was asked for before has been begun
        while not self.call(lambda: self.engine._residence.is_idle):
            assert time.monotonic() < deadline, "KV is still moving"
            time.sleep(0.005)

    def give_up_arena(self) -> None:
        """Have whatever can go leave the arena: automatic KV without a file for good, all else for the disk."""
        self.let_files_settle()
        room, pool = self.engine._room, self.engine._arena.pool
        self.call(lambda: room._make_room(pool.block_count))

    def used_blocks(self) -> int:
        return self.engine.call(lambda segments: segments.arena.pool.used_count).result(_PATIENCE_SECONDS)

    def close(self) -> None:
        """Everything has ended, once, and all memory is back in the pool."""
        for answer in self._asked:
            assert answer.outcome
        for cache_id in list(self.cache_tokens):
            self.drop(cache_id)
        if self.engine._thread.is_alive():
            with suppress(Unavailable):  # it may be stopping
                self.let_files_settle()
                self.engine.call(self.check_all_free).result(_PATIENCE_SECONDS)
        self.engine.stop()
        assert self.engine._open_count == 0
        assert self.engine._tails.free_count == self.config.max_running_requests

    def check_all_free(self, segments: Segments) -> None:
        tree = self.engine._tree
        tree.check_integrity()
        assert (tree.counts.pinned, tree.counts.dead) == (0, 0)
        tree.evict(segments.arena.pool.block_count)
        tree.check_integrity()
        assert not segments.alive
        assert segments.arena.pool.used_count == 0
        assert not self.engine._tails.slabs.any(), "a tail was left behind"


def open_disk(folder: Path, shape: ModelShape, config: EngineConfig, blocks: int) -> DiskStore:
    limit = blocks * (BLOCK_TOKENS * shape.kv_bytes_per_token(config.dtype) + 2000)  # with headers
    kv_format = KvFormat.of(config.fingerprint, config.dtype, shape)
    return DiskStore(folder, kv_format, limit_bytes=limit, incarnation=uuid4().hex)


def engine_config(shape: ModelShape, *, blocks: int = 128, **changes: Any) -> EngineConfig:
    """Small numbers, so that short prompts cross every border: chunks of 100, tails of 128, 8 seats."""
    values: dict[str, Any] = {
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "arena_bytes": blocks * BLOCK_TOKENS * shape.kv_bytes_per_token(torch.float32),
        "prefill_chunk_tokens": 100,
        "max_running_requests": 8,
        "max_waiting_requests": 64,
        "tail_tokens": 128,
        "prefill_stretch": None,
    }
    return EngineConfig(**(values | changes))


def assert_like_oracle(oracle: Oracle, answer: Answer, tolerance: float = 1e-5) -> list[bool]:
    """Each token is the oracle's choice and its logits are the oracle's. Tells which tokens could be compared.

    tolerance: of the logits, relative to the largest; what lies in many runs is merged from more parts, and rounded oftener. Where the oracle's two best are less than 1e-3 apart, either may be chosen.
    """
    assert answer.tokens
    expected = oracle.logits(answer.prompt, answer.tokens)
    actual = torch.stack(answer.logits)
    difference = (actual - expected).abs().max() / expected.abs().max()
    assert difference <= tolerance, f"logits differ by {difference:.1e} of the largest"
    best = expected.topk(2).values
    is_clear = best[:, 0] - best[:, 1] >= 1e-3
    chosen = torch.tensor(answer.tokens)
    assert torch.equal(chosen[is_clear], expected.argmax(-1)[is_clear])
    return [bool(clear) for clear in is_clear]
