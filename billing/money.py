"""Amounts as people read them. Inside they are integers of nano-USD, 10⁻⁹ USD."""

import re

from core.errors import InvalidArgument

NANO_USD = 10**9
AMOUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?", re.ASCII)


def usd(nano_usd: int) -> str:
    """Write an amount in USD, exact to the nano."""
    whole, rest = divmod(abs(nano_usd), NANO_USD)
    return f"{'-' if nano_usd < 0 else ''}{whole}.{rest:09d}"


def parse_usd(text: str, field: str) -> int:
    """Read an amount in USD, such as 12 or 0.5, exactly; raises InvalidArgument, which names the field."""
    found = AMOUNT.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(
            f"{field} must be an amount in USD, such as 12 or 0.5, with at most nine decimals, not {text[:64]!r}.",
            field=field,
        )
    whole, rest = found.groups(default="")
    return int(whole) * NANO_USD + int(rest.ljust(9, "0") or 0)
