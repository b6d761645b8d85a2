"""Who computes how much of a prompt in the next step, beside the tokens of running answers. No tensors."""

import math
from collections.abc import Iterable, Iterator

from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import EngineConfig
from workers.engine.pace import Pace
from workers.engine.sequence import Build, Sequence
from workers.engine.step import Row

_BURST_CHUNKS = 3


class Shares:
    """Divides the prefill of each step, at most one chunk, among a build and the prompts. Called on the engine thread only.

    Beside answers a step carries what its pace allows. Questions, prompts of which at most a block is missing, may go beyond
    that for some steps: many at once cost answers a few long steps, where paced they would be many. What they take beyond the pace must be
    left unused by later steps before they may again, so that questions without end are paced like everything else.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.pace = Pace(config.prefill_chunk_tokens, config.prefill_stretch or math.inf)
        self._tail_tokens = config.tail_tokens
        self._most_burst = _BURST_CHUNKS * config.prefill_chunk_tokens
        self._burst = self._most_burst  # tokens that questions may still take beyond the pace
        self._builds_first = False
        self._is_rebuilding = False  # whether the step before carried a rebuild that nobody waits for

    def next_rows(
        self, prompts: list[Sequence], build: Build | None, *, is_awaited: bool, decode_count: int
    ) -> list[tuple[Build | Sequence, Row]]:
        """Rows of at most one chunk together, one an item.

        prompts: that have room, in the order of admission. is_awaited: whether somebody waits for the build, or for KV that
        it may bring; one that nobody waits for stands back at least every other step for whoever runs. Build and prompts go first in turn, and whoever is
        first is certain of half of what the pace allows.
        """
        if self._is_rebuilding and not is_awaited and (prompts or decode_count):
            build = None
        if build is not None and prompts:
            self._builds_first = not self._builds_first
        builds: list[Build | Sequence] = [] if build is None else [build]
        items = [*builds, *prompts] if self._builds_first else [*prompts, *builds]
        if decode_count == 0:
            self._burst = self._most_burst
        paced = self.pace.chunk_tokens(decode_count)
        rows = list(self._divide(items, paced))
        carried = sum(len(row.token_ids) for _, row in rows)
        self._burst = min(self._most_burst, self._burst + paced - carried)
        self._is_rebuilding = not is_awaited and any(item is build for item, _ in rows)
        return rows

    def _divide(self, items: list[Build | Sequence], paced: int) -> Iterator[tuple[Build | Sequence, Row]]:
        questions = [item for item in items if _is_question(item)]
        others = [item for item in items if not _is_question(item)]
        # A question that is first needs nothing kept: it is the first of the questions.
        kept = paced - paced // 2 if items and items[0] in others else 0
        kept = min(kept, _missing(items[0])) if kept else 0
        most = min(self.pace.largest, paced + self._burst)
        given = 0
        for item, row in self._rows(questions, most - kept):
            given += len(row.token_ids)
            yield item, row
        left = max(kept, paced - given)
        first = others[:1] if kept else []
        behind = sorted(others[len(first) :], key=_missing)
        for item, row in self._rows(behind, left - kept):
            left -= len(row.token_ids)
            yield item, row
        yield from self._rows(first, left)

    def _rows(self, items: Iterable[Build | Sequence], most: int) -> Iterator[tuple[Build | Sequence, Row]]:
        """Of each as much as is left when its turn comes."""
        for item in items:
            if most > 0:
                row = item.row(most) if isinstance(item, Build) else item.row(most, self._tail_tokens)
                most -= len(row.token_ids)
                yield item, row


def _is_question(item: Build | Sequence) -> bool:
    return isinstance(item, Sequence) and _missing(item) <= BLOCK_TOKENS


def _missing(item: Build | Sequence) -> int:
    """Tokens whose KV it has to wait for."""
    return len(item.token_ids) - item.computed
