"""The smallest life that still differs: what a failure is told by."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from bench.billing.lives import Announce, Life, Step

# What a number of a step may become, where the difference does not need it.
_SIMPLE = {
    "takes": 0,
    "suffix": 1,
    "implicit": 0,
    "output": 0,
    "deliveries": 1,
    "times": 1,
    "tokens": 1,
    "pick": 0,
}


def smallest(life: Life, differs: Callable[[Life], bool]) -> Life:
    """Leave out and make simpler whatever can be, as long as it differs."""
    while True:
        simpler = next(filter(differs, _simpler(life)), None)
        if simpler is None:
            return life
        life = simpler


def in_words(life: Life) -> str:
    """Its prices, and its steps, a line each."""
    prices = [f"{each.meter} costs {each.nano_usd}" for each in life.prices]
    return "\n".join([*prices, *map(str, life.steps)])


def _simpler(life: Life) -> Iterator[Life]:
    steps = life.steps
    for index in reversed(range(len(steps))):
        yield replace(life, steps=(*steps[:index], *steps[index + 1 :]))
    for index, step in enumerate(steps):
        for simpler in _simpler_steps(step):
            yield replace(life, steps=(*steps[:index], simpler, *steps[index + 1 :]))


def _simpler_steps(step: Step) -> Iterator[Step]:
    if isinstance(step, Announce):
        for index in range(len(step.changes)):
            yield replace(step, changes=(*step.changes[:index], *step.changes[index + 1 :]))
        return
    for name in sorted(_SIMPLE.keys() & {each.name for each in fields(step)}):
        simple, value = _SIMPLE[name], getattr(step, name)
        for less in (simple, max(simple, value // 2)):
            if abs(less) < abs(value):
                simpler: Any = {name: less}  # which fields a step has, no type says
                yield replace(step, **simpler)
