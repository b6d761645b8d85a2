"""How much is measured. The quick plan shows that everything works; its figures compare with nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """lengths: tokens of the documents, the longest last: claims are about that, and the others get fewer rounds."""

    lengths: tuple[int, ...]
    hit_rounds: int
    short_rounds: int
    cold_rounds: int
    output_tokens: int
    widths: tuple[int, ...]
    fan_rounds: int
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
    is_quick=True,
)
