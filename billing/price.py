"""A price: what a meter costs, for whom, for which model, and when."""

from dataclasses import dataclass, field
from datetime import datetime

from billing.meters import Meter

ANY = "*"


@dataclass(frozen=True, slots=True)
class Price:
    """What a million units of a meter cost at the instants of [effective_from, effective_to).

    project_id: a project, or "*" for each; model: a served model's name, or "*" for each.
    effective_to: None: until further notice. A unit is a token; for cache storage it is a token kept for an hour.
    id: of the stored row; 0 before it is stored.
    """

    project_id: str
    model: str
    meter: Meter
    effective_from: datetime
    effective_to: datetime | None
    nano_usd_per_million: int
    id: int = field(default=0, compare=False)

    @property
    def subject(self) -> tuple[str, str, Meter]:
        """Whose price of what it is: no two prices of one subject hold at one instant."""
        return self.project_id, self.model, self.meter

    @property
    def key(self) -> tuple[str, str, Meter, datetime]:
        """By which it is found again among the stored ones."""
        return (*self.subject, self.effective_from)

    def holds_at(self, instant: datetime) -> bool:
        return self.effective_from <= instant and (self.effective_to is None or instant < self.effective_to)

    def overlaps(self, start: datetime, end: datetime | None) -> bool:
        """Whether it holds at any instant of [start, end); None: without end."""
        return (end is None or self.effective_from < end) and (
            self.effective_to is None or start < self.effective_to
        )


def in_order(prices: "list[Price] | tuple[Price, ...]") -> list[Price]:
    """Sort by subject, then by instant."""
    return sorted(prices, key=lambda price: (price.subject, price.effective_from))


def in_words(price: Price) -> str:
    whose = "" if price.project_id == ANY else f" of project {price.project_id}"
    return f'{price.meter} for model "{price.model}"{whose} from {price.effective_from:%Y-%m-%dT%H:%M:%SZ}'
