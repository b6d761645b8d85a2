"""Amounts as people read them. Inside they are integers of nano-USD, 10⁻⁹ USD."""

NANO_USD = 10**9


def usd(nano_usd: int) -> str:
    """Write an amount in USD, exact to the nano."""
    whole, rest = divmod(abs(nano_usd), NANO_USD)
    return f"{'-' if nano_usd < 0 else ''}{whole}.{rest:09d}"
