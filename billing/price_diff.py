"""What one set of prices has that another has not."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from billing.price import Price, in_order


@dataclass(frozen=True, slots=True)
class Change:
    """A price that comes, goes, or from now on ends at another instant: then as it becomes."""

    kind: Literal["added", "removed", "end moved"]
    price: Price


def diff(before: Iterable[Price], after: Iterable[Price]) -> list[Change]:
    """Changes in the order of the prices."""
    old = {_key(price): price for price in before}
    new = {_key(price): price for price in after}
    changes = []
    for price in in_order([*{**old, **new}.values()]):
        key = _key(price)
        if key not in new:
            changes.append(Change("removed", price))
        elif key not in old:
            changes.append(Change("added", price))
        elif old[key] != new[key]:
            changes.append(Change("end moved", price))
    return changes


def _key(price: Price) -> tuple[object, ...]:
    return (*price.subject, price.effective_from, price.nano_usd_per_million)
