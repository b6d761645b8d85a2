"""The KV of consecutive tokens, wherever it lies: in the arena, below it, or on its way from one to the other."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from workers.engine.segment import Segment
from workers.engine.tiers.kv_file import KvFile


@dataclass(slots=True, eq=False)
class Stored(ABC):
    """In the arena (`segment`), in host memory beside a device's arena (`host`), on disk (`file`), in several of them, or
    lost. begin: the place of its first token. transfers: copies of it under way.
    """

    token_ids: tuple[int, ...]
    segment: Segment | None
    host: Segment | None = field(default=None, kw_only=True)
    file: "FileCopy | None" = field(default=None, kw_only=True)
    transfers: "list[Transfer]" = field(default_factory=list, kw_only=True)
    used_at: int = field(default=0, kw_only=True)
    begin: int = field(init=False)

    @abstractmethod
    def path(self) -> "Iterable[Stored]":
        """All that it stands upon, from the first token on, and itself."""

    @property
    @abstractmethod
    def is_findable(self) -> bool:
        """Somebody may ask for it again."""

    @property
    def length(self) -> int:
        """Tokens whose KV is written to the arena."""
        return 0 if self.segment is None else self.segment.length

    @property
    def is_ready(self) -> bool:
        """All of it is in the arena, to be read in place."""
        return self.length == len(self.token_ids)

    @property
    def has_copy(self) -> bool:
        """It lies below the arena, too."""
        return self.host is not None or self.file is not None

    @property
    def is_absent(self) -> bool:
        """It is not in the arena, and can be brought there."""
        return self.segment is None and self.has_copy

    @property
    def is_lost(self) -> bool:
        """It can only be computed again."""
        return self.segment is None and not self.has_copy

    @property
    def copies(self) -> int:
        return len(self.transfers)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Where all its tokens lie in the arena, written or not."""
        return [] if self.segment is None else self.segment.windows.of(0, len(self.token_ids))


@dataclass(slots=True, eq=False)
class FileCopy:
    """A KV file and whose KV it holds, in order: more than one where a node was divided after it was written.

    load_count: how many read it just now. is_doomed: it goes with the last of them.
    """

    file: KvFile
    parts: list[Stored]
    load_count: int = 0
    is_doomed: bool = False


@dataclass(slots=True, eq=False)
class Transfer:
    """A copy under way. parts: whose KV, in order; a node that is divided meanwhile stays here as two."""

    parts: list[Stored]

    def __post_init__(self) -> None:
        for part in self.parts:
            part.transfers.append(self)

    def end(self) -> None:
        for part in self.parts:
            part.transfers.remove(self)
