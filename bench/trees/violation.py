"""What a walk ends with when it has found a fault."""


class Violation(Exception):  # noqa: N818 - what it is
    """Something that must hold does not."""


def require(holds: bool, words: str) -> None:
    if not holds:
        raise Violation(words)
