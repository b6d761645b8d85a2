"""How much is measured. The quick plan shows that everything works; its figures compare with nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """lengths: tokens of the documents, the longest last: claims are about that, and the others get fewer rounds.

    shared_tokens: what two documents of sharing_tokens have in common. stall_rounds: creates beside streams, and as many
    alone. stream_tokens: of each answer of a stream; the next question follows it. restarts: of the server.
    """

    lengths: tuple[int, ...]
    hit_rounds: int
    short_rounds: int
    cold_rounds: int
    output_tokens: int
    widths: tuple[int, ...]
    fan_rounds: int
    shared_tokens: int
    sharing_tokens: int
    stall_rounds: int
    stream_tokens: int
    restarts: int
    lookup_nodes: int
    lookup_rounds: int
    is_quick: bool

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    def hits(self, length: int) -> int:
        return self.hit_rounds if length == self.longest else self.short_rounds


FULL = Plan(
    lengths=(1000, 2000, 4000, 7900),
    hit_rounds=11,
    short_rounds=5,
    cold_rounds=3,
    output_tokens=32,
    widths=(32, 8),
    fan_rounds=3,
    shared_tokens=4000,
    sharing_tokens=5000,
    stall_rounds=3,
    stream_tokens=128,
    restarts=3,
    lookup_nodes=100_000,
    lookup_rounds=101,
    is_quick=False,
)
QUICK = Plan(
    lengths=(1000,),
    hit_rounds=3,
    short_rounds=0,
    cold_rounds=1,
    output_tokens=8,
    widths=(32, 8),
    fan_rounds=1,
    shared_tokens=800,
    sharing_tokens=1000,
    stall_rounds=1,
    stream_tokens=16,
    restarts=1,
    lookup_nodes=10_000,
    lookup_rounds=11,
    is_quick=True,
)
