"""The price book: a TOML file of dated prices, read strictly. It knows nothing of the database."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from billing.meters import Meter
from core.errors import PriceBookInvalid

EXAMPLE_PRICE_BOOK = Path(__file__).parent / "price_books" / "example.toml"
ANY_MODEL = "*"
MAX_NANO_USD_PER_MILLION = 10**15  # a dollar a token; keeps any amount a database integer
MAX_BYTES = 1024 * 1024
FIRST_YEAR, LAST_YEAR = 1970, 9998  # any offset can be taken off
FIELDS = frozenset({"model", "meter", "nano_usd_per_million", "effective_from"})


@dataclass(frozen=True, slots=True, order=True)
class Price:
    """What a million units of a meter cost for a model from an instant on, until the next price for both.

    model: a served model's name, or "*" for each that has no price of its own.
    A unit is a token; for cache storage it is a token kept for an hour.
    """

    model: str
    meter: Meter
    effective_from: datetime
    nano_usd_per_million: int


@dataclass(frozen=True, slots=True)
class PriceBook:
    """The prices of one file, sorted; no two share model, meter and instant."""

    source: str
    prices: tuple[Price, ...]


def load_price_book(path: Path | None) -> PriceBook:
    """Read a price book; None is the example that ships. Raises PriceBookInvalid."""
    path = path or EXAMPLE_PRICE_BOOK
    content = _read(path)
    for name in content:
        if name != "price":
            raise _invalid(path, f'"{name}" is not known; a price book holds [[price]] tables only')
    tables = content.get("price", [])
    if not isinstance(tables, list) or not tables:
        raise _invalid(path, "it has no price; add [[price]] tables, as the example that ships does")
    first_rows: dict[tuple[str, Meter, datetime], int] = {}
    prices = []
    for number, table in enumerate(tables, 1):
        if not isinstance(table, dict):
            raise _invalid(path, f"price {number} is not a table; write [[price]] above its fields")
        price = _price(path, number, table)
        first = first_rows.setdefault((price.model, price.meter, price.effective_from), number)
        if first != number:
            raise _invalid(path, f"price {number} repeats model, meter and effective_from of price {first}")
        prices.append(price)
    return PriceBook(source=str(path), prices=tuple(sorted(prices)))


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _invalid(path, f"it cannot be read ({error.strerror}): check HEADSTART_PRICE_BOOK") from error
    if len(content) > MAX_BYTES:
        raise _invalid(path, f"it is larger than {MAX_BYTES} bytes; no price book needs that")
    try:
        return tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid(path, f"it is not TOML: {error}") from error


def _price(path: Path, number: int, table: dict[str, object]) -> Price:
    for problem in _problems(table):
        raise _invalid(path, f"price {number}: {problem}")
    effective_from = table["effective_from"]
    nano_usd = table["nano_usd_per_million"]
    assert isinstance(effective_from, datetime)
    assert isinstance(nano_usd, int)
    return Price(
        model=str(table["model"]),
        meter=Meter(str(table["meter"])),
        nano_usd_per_million=nano_usd,
        effective_from=effective_from.astimezone(UTC),
    )


def _problems(table: dict[str, object]) -> Iterator[str]:
    """What is wrong with a price, in words; nothing more is looked at once a field is missing or unknown."""
    for name in sorted(FIELDS - table.keys()):
        yield f"{name} is missing; add it"
    for name in sorted(table.keys() - FIELDS):
        yield f"{name} is not known; the fields are {', '.join(sorted(FIELDS))}"
    model, meter = table["model"], table["meter"]
    nano_usd, effective_from = table["nano_usd_per_million"], table["effective_from"]
    if not isinstance(model, str) or not model or model != model.strip():
        yield f'model must be a served model\'s name or "*", not {model!r}'
    if meter not in [*Meter]:
        yield f"meter must be one of {', '.join(Meter)}, not {meter!r}"
    if type(nano_usd) is not int or not 0 <= nano_usd <= MAX_NANO_USD_PER_MILLION:
        yield (
            f"nano_usd_per_million must be an integer from 0 to {MAX_NANO_USD_PER_MILLION}"
            f" (1 USD is 1000000000), not {nano_usd!r}"
        )
    if not isinstance(effective_from, datetime) or effective_from.utcoffset() is None:
        yield (
            "effective_from must be an instant with an offset, such as 2026-01-01T00:00:00Z,"
            f" not {effective_from!s}"
        )
    elif effective_from.microsecond or not FIRST_YEAR <= effective_from.year <= LAST_YEAR:
        yield (
            f"effective_from must be a whole second in the years {FIRST_YEAR} to {LAST_YEAR},"
            f" not {effective_from!s}"
        )


def _invalid(path: Path, problem: str) -> PriceBookInvalid:
    return PriceBookInvalid(f"price book {path}: {problem}", field="price_book")
