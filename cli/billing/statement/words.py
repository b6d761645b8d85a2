"""What a statement says in words: names of meters, rounded amounts, and the sentence above each plot."""

from billing.meters import READ_METERS, Meter
from billing.money import usd
from billing.report import Sums
from billing.statement import Statement

NAMES = {
    Meter.CACHE_WRITE_TOKENS: "Written into caches",
    Meter.CACHE_STORAGE_TOKEN_SECONDS: "Kept in caches",
    Meter.CACHE_READ_TOKENS: "Read from named caches",
    Meter.IMPLICIT_CACHE_READ_TOKENS: "Read implicitly",
    Meter.INPUT_TOKENS: "Input computed",
    Meter.OUTPUT_TOKENS: "Output",
}
_DIGITS_OF_ONE_USD = 10
_JOINERS = "\u200c\u200d\u00a0"  # between letters of Persian and parts of one emoji; a space


def about_usd(nano_usd: int) -> str:
    """Write an amount for reading: to the cent, or to three figures where it is less than a dollar. The tables are exact."""
    digits = len(str(abs(nano_usd)))
    decimals = 2 if digits >= _DIGITS_OF_ONE_USD else min(9, 12 - digits)
    unit = 10 ** (9 - decimals)
    rounded = (abs(nano_usd) + unit // 2) // unit * unit
    text = usd(rounded)[: decimals - 9 or None]
    whole, _, rest = text.partition(".")
    return f"{'−' if nano_usd < 0 and rounded else ''}{int(whole):,}.{rest}"


def price_usd(nano_usd_per_million: int) -> str:
    """Write a unit price exactly, without the zeros at its end that say nothing."""
    whole, _, rest = usd(nano_usd_per_million).partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')}"


def unit_of(meter: Meter) -> str:
    return "token-hours" if meter is Meter.CACHE_STORAGE_TOKEN_SECONDS else "tokens"


def token_hours(token_seconds: int) -> str:
    """Write token-seconds as token-hours, to the nearest whole one."""
    return f"{(token_seconds + 1800) // 3600:,}"


def saving(sums: Sums) -> str:
    saved, without = sums.saved_nano_usd, sums.without_cache_nano_usd
    if saved > 0:
        return f"Caching saved {about_usd(saved)} USD, {_percent(saved, without)} of what it would have cost without"
    if saved < 0:
        return f"Caching cost {about_usd(-saved)} USD more than it saved"
    return "Caching neither saved nor cost anything"


def largest_part(sums: Sums) -> str:
    """Name the meter that costs most."""
    total = sums.amount_nano_usd
    meter, line = max(sums.lines.items(), key=lambda each: each[1].amount_nano_usd)
    if not total:
        return "Nothing was charged"
    return (
        f"{NAMES[meter]}: {_percent(line.amount_nano_usd, total)} of {about_usd(total)} USD, the largest part"
    )


def days_that_paid(made: Statement) -> str:
    """Count the days on which caching saved more than it cost, of those on which it did anything."""
    touched = [sums for sums in made.days.values() if _is_cached(sums)]
    paid = sum(sums.saved_nano_usd > 0 for sums in touched)
    return f"Days on which caching saved more than it cost: {paid} of {len(touched)}"


def caches_that_cost(made: Statement) -> str:
    cost = sum(sums.saved_nano_usd < 0 for sums in made.caches.values())
    return f"Caches that cost more than they saved: {cost} of {len(made.caches)}"


def cache_label(made: Statement, cache_id: str, length: int) -> str:
    """Name a cache in so many signs: as its owner does while it lives, else by the beginning of its id."""
    return shortened(made.names.get(cache_id, cache_id), length)


def shortened(text: str, length: int) -> str:
    """Cut a text, and take out what cannot be shown, or would turn what stands beside it round."""
    shown = "".join(sign if sign.isprintable() or sign in _JOINERS else "�" for sign in text)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def _is_cached(sums: Sums) -> bool:
    meters = Meter.CACHE_WRITE_TOKENS, Meter.CACHE_STORAGE_TOKEN_SECONDS, *READ_METERS
    return any(sums.lines[meter].quantity for meter in meters)


def _percent(part: int, whole: int) -> str:
    return f"{(200 * part + whole) // (2 * whole)} %"
