"""In which order things of several namespaces give way."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from workers.engine.node import Root

Thing = TypeVar("Thing")


def fair_order(
    things: Iterable[Thing],
    root_of: Callable[[Thing], Root],
    size_of: Callable[[Thing], int],
    age_key: Callable[[Thing], tuple[int, int]],
) -> Iterator[Thing]:
    """From whoever has most left by size, the one with the least age key first: equal shares are what comes of it."""
    waiting: dict[Root, list[Thing]] = defaultdict(list)
    left: dict[Root, int] = defaultdict(int)
    for thing in things:
        waiting[root_of(thing)].append(thing)
        left[root_of(thing)] += size_of(thing)
    for each in waiting.values():
        each.sort(key=age_key, reverse=True)
    while waiting:
        root = max(waiting, key=lambda root: left[root])
        thing = waiting[root].pop()
        left[root] -= size_of(thing)
        if not waiting[root]:
            del waiting[root]
        yield thing
