"""What a run says: a table for people, and one JSON object for programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from bench.contestant import Description
from bench.figures import TARGETS
from bench.machine import Machine, is_quiet
from bench.roster import ROSTER

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides whether figures mean anything. load_before: averages over 1, 5 and 15 minutes."""

    machine: Machine
    load_before: tuple[float, float, float]
    is_quick: bool
    changed: tuple[str, ...]

    @property
    def reservations(self) -> list[str]:
        """Why figures are only reported; none where they are judged."""
        found = []
        if self.is_quick:
            found.append("quick: short documents and few repetitions, comparable with nothing")
        if not self.machine.computes_bfloat16:
            found.append("this CPU has no avx512_bf16")
        if not is_quiet(self.load_before[0]):
            found.append(f"the machine was not quiet: load {self.load_before[0]:.1f} before the run")
        if self.changed:
            found.append(f"settings are not the defaults of headstart serve: {', '.join(self.changed)}")
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """One benchmark: its figures, every contestant's own, and why the run is void where it is."""

    benchmark: str
    figures: dict[str, float | None]
    absolutes: dict[str, dict[str, Any]]
    voids: list[str]


def as_json(
    name: str, outcomes: list[Outcome], descriptions: Mapping[str, Description], around: Circumstances
) -> dict[str, Any]:
    """Figures first, by the names of the claims; then what they come from."""
    figures = {key: value for outcome in outcomes for key, value in outcome.figures.items()}
    is_judged = not around.reservations
    values: dict[str, Any] = rounded(
        {
            "benchmark": name,
            **figures,
            "void": [reason for outcome in outcomes for reason in outcome.voids],
            "judged": is_judged,
            "reservations": around.reservations,
            "verdicts": verdicts(figures) if is_judged else {},
            "absolutes": {outcome.benchmark: outcome.absolutes for outcome in outcomes},
            "contestants": {each: asdict(description) for each, description in descriptions.items()},
            "machine": asdict(around.machine),
            "load_before": around.load_before,
            "quick": around.is_quick,
        }
    )
    return values


def verdicts(figures: Mapping[str, float | None]) -> dict[str, str]:
    known = {name: value for name, value in figures.items() if name in TARGETS and value is not None}
    return {name: TARGETS[name].verdict(value) for name, value in known.items()}


def claims(outcome: Outcome, around: Circumstances) -> Table:
    """The figures that have something to reach."""
    table = Table(title=f"{outcome.benchmark}: claims", title_justify="left")
    for name in ("figure", "seen", "must", "aim", "verdict"):
        table.add_column(name, justify="left" if name in {"figure", "verdict"} else "right")
    judged = verdicts(outcome.figures) if not around.reservations else {}
    for name, target in TARGETS.items():
        if name in outcome.figures:
            table.add_row(
                name,
                shown(outcome.figures[name]),
                f"{target.sign} {target.must:g}",
                "–" if target.aim is None else f"{target.sign} {target.aim:g}",
                judged.get(name, "reported only"),
            )
    return table


def overview(outcome: Outcome) -> Table:
    """Every contestant's absolutes, one row each size."""
    table = Table(title=f"{outcome.benchmark}: absolutes", title_justify="left")
    names = sorted(
        {name for each in outcome.absolutes.values() for size in each.values() for name in scalars(size)}
    )
    table.add_column("contestant")
    table.add_column("size", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for contestant, by_size in outcome.absolutes.items():
        for size, values in by_size.items():
            table.add_row(ROSTER[contestant].title, size, *(shown(values.get(name)) for name in names))
        table.add_section()
    return table


def described(name: str, versions: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """A contestant's title, and what a reader needs to run it again."""
    facts = {**versions, **settings}
    return f"{ROSTER[name].title}: " + ", ".join(f"{key} {value}" for key, value in facts.items())


def scalars(values: Mapping[str, Any]) -> list[str]:
    return [name for name, value in values.items() if not isinstance(value, list)]


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,.{_DIGITS}g}"


def rounded(value: Any) -> Any:
    """Numbers with as many digits as mean something."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value
