"""What a benchmark asks of each engine, and what it answers; every figure is taken beside the engine, not across a pipe."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from bench.workload import Document, Prompt

Setting = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Description:
    """versions and settings: what a reader needs to repeat the run. changed: settings that are not the defaults of serve."""

    versions: dict[str, str]
    settings: dict[str, Setting]
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Kept:
    """seconds: from the document's text until it is kept; where that takes a question, until the first text of its answer."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Asked:
    """first_text_s: from the question's text to the first text of the answer. token_s: of each token after the first."""

    first_text_s: float
    token_s: float | None

    @classmethod
    def from_times(cls, started: float, times: list[float]) -> "Asked":
        """From the instants at which the tokens came."""
        later = len(times) - 1
        return cls(times[0] - started, (times[-1] - times[0]) / later if later else None)


@dataclass(frozen=True, slots=True)
class FannedOut:
    """seconds: from the first submit to the last token. growth_bytes: how far the process grew at most meanwhile.

    counted_bytes: what the engine itself counts for the same time, where it counts.
    """

    seconds: float
    output_tokens: int
    growth_bytes: int | None = None
    counted_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """kv_bytes: of all blocks of the arena that are taken. token_bytes: of the KV of one token."""

    kv_bytes: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class KeptBeside:
    """seconds: as of `Kept`. quiet_gaps_s, gaps_s: between two tokens of a stream, before that and meanwhile."""

    seconds: float
    quiet_gaps_s: list[float]
    gaps_s: list[float]


@runtime_checkable
class Keeping(Protocol):
    """One engine that keeps one document at a time."""

    def keep(self, document: Document) -> Kept:
        """Compute a document never seen before, so that what is asked from now on is a hit; forget the one before."""


@runtime_checkable
class Asking(Keeping, Protocol):
    def ask(self, prompt: Prompt, output_tokens: int) -> Asked:
        """Answer a question about the document that is kept."""


@runtime_checkable
class FanningOut(Keeping, Protocol):
    def fan_out(self, prompts: list[Prompt], output_tokens: int) -> FannedOut:
        """Answer all of them at once."""


@runtime_checkable
class Storing(Asking, Protocol):
    """It can keep several documents. Where it is started again upon its folder, it still has them."""

    def keep_too(self, document: Document) -> Kept:
        """As `keep`, and forget nothing."""

    def forget(self, document: Document) -> None: ...

    def held(self) -> Held: ...


@runtime_checkable
class Streaming(Storing, Protocol):
    def keep_beside(
        self, document: Document, prompts: list[Prompt], streams: int, output_tokens: int
    ) -> KeptBeside:
        """As `keep_too`, while so many streams answer the prompts, each the next one as soon as it is done with one."""


class Contestant(Keeping, Protocol):
    """What lives in a process of its own."""

    def describe(self) -> Description: ...

    def close(self) -> None: ...
