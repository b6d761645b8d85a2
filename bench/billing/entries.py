"""What is on record of a life, under names that whoever checks and whoever is checked can both give."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """One entry. hour: counted from 1970 on. is_correction: of another entry, or for a month that is closed. month: billed in."""

    meter: str
    hour: int
    is_correction: bool
    month: str
    quantity: int
    amount: int
    without_cache: int


# By name: r<step>:<meter>, write:<meter>, storage:<second of the life>, correction:<name>:<number>.
Record = Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class Difference:
    """nano_usd: by how much all amounts that differ do so. what: the first of them, in words."""

    nano_usd: int
    what: str


def compare(found: Record, expected: Record) -> Difference | None:
    names = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    if not names:
        return None
    nano_usd = sum(abs(_amount(found, name) - _amount(expected, name)) for name in names)
    first = names[0]
    return Difference(
        nano_usd, f"{first}: {found.get(first)} is on record, expected is {expected.get(first)}"
    )


def compare_totals(found: int, expected: int, about: str) -> Difference | None:
    if found == expected:
        return None
    return Difference(abs(found - expected), f"{about}: {found} nano-USD, expected are {expected}")


def correctable(names: Iterable[str], pick: int) -> str | None:
    """Which charge a correction is about; None where there is none."""
    charges = sorted(name for name in names if not name.startswith("correction:"))
    return charges[pick % len(charges)] if charges else None


def correction_of(name: str, names: Iterable[str]) -> str:
    """The name of the next correction of a charge."""
    prefix = f"correction:{name}:"
    return f"{prefix}{1 + sum(each.startswith(prefix) for each in names)}"


def _amount(record: Record, name: str) -> int:
    return record[name].amount if name in record else 0
