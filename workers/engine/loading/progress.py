"""How a long step says how far it is, without knowing who draws it."""

from collections.abc import Callable

Progress = Callable[[str, float], None]  # what is being done, and the fraction of it that is done, 0 to 1


def silent(what: str, fraction: float) -> None:
    """Draw nothing."""
