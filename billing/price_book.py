"""The price book: a TOML file of dated prices, read strictly. It knows nothing of the database."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from billing.meters import Meter
from billing.price import ANY, Price, in_order, in_words
from billing.price_checks import check_sane, check_unbroken
from core.errors import PriceBookInvalid

EXAMPLE_PRICE_BOOK = Path(__file__).parent / "price_books" / "example.toml"
MAX_NANO_USD_PER_MILLION = 10**13  # 10,000 USD; keeps any amount a database integer
MAX_BYTES = 1024 * 1024
FIRST_YEAR, LAST_YEAR = 1970, 9998  # any offset can be taken off
NEEDED = frozenset({"model", "meter", "nano_usd_per_million", "effective_from"})
FIELDS = NEEDED | {"project", "effective_to"}


@dataclass(frozen=True, slots=True)
class PriceBook:
    """The prices of one file, sorted: none overlaps another of its subject, and no time is left without one in between.

    A price's project_id is the project as it is written: a name, an id, or "*".
    """

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
    prices = []
    for number, table in enumerate(tables, 1):
        if not isinstance(table, dict):
            raise _invalid(path, f"price {number} is not a table; write [[price]] above its fields")
        prices.append(_price(path, number, table))
    return make_book(str(path), prices)


def make_book(source: str, prices: list[Price]) -> PriceBook:
    """Make a book of prices, each without an end ending where the next of its subject begins. Raises PriceBookInvalid."""
    numbers = {id(price): number for number, price in enumerate(prices, 1)}
    ended: list[Price] = []
    for price, following in pairwise([*in_order(prices), None]):
        assert price is not None
        if following is None or following.subject != price.subject:
            ended.append(price)
            continue
        if following.effective_from == price.effective_from or (
            price.effective_to is not None and price.effective_to > following.effective_from
        ):
            raise PriceBookInvalid(
                f"Price book {source}: price {numbers[id(following)]} ({in_words(following)}) overlaps price "
                f"{numbers[id(price)]} ({in_words(price)}). Leave effective_to out of the earlier one: it then ends where "
                "the later one begins.",
                field="effective_from",
            )
        until = following.effective_from if price.effective_to is None else price.effective_to
        ended.append(replace(price, effective_to=until))
    check_unbroken(source, ended)
    check_sane(source, ended)
    return PriceBook(source=source, prices=tuple(ended))


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _invalid(path, f"it cannot be read ({error.strerror}): check its path") from error
    if len(content) > MAX_BYTES:
        raise _invalid(path, f"it is larger than {MAX_BYTES} bytes; no price book needs that")
    try:
        return tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid(path, f"it is not TOML: {error}") from error


def _price(path: Path, number: int, table: dict[str, object]) -> Price:
    for problem in _problems(table):
        raise _invalid(path, f"price {number}: {problem}")
    effective_from, effective_to = table["effective_from"], table.get("effective_to")
    nano_usd = table["nano_usd_per_million"]
    assert isinstance(effective_from, datetime)
    assert isinstance(nano_usd, int)
    return Price(
        project_id=str(table.get("project", ANY)),
        model=str(table["model"]),
        meter=Meter(str(table["meter"])),
        nano_usd_per_million=nano_usd,
        effective_from=effective_from.astimezone(UTC),
        effective_to=effective_to.astimezone(UTC) if isinstance(effective_to, datetime) else None,
    )


def _problems(table: dict[str, object]) -> Iterator[str]:
    """What is wrong with a price, in words; nothing more is looked at once a field is missing or unknown."""
    for name in sorted(NEEDED - table.keys()):
        yield f"{name} is missing; add it"
    for name in sorted(table.keys() - FIELDS):
        yield f"{name} is not known; the fields are {', '.join(sorted(FIELDS))}"
    model, meter, nano_usd = table["model"], table["meter"], table["nano_usd_per_million"]
    if not _is_name(model):
        yield f'model must be a served model\'s name or "*", not {model!r}'
    if not _is_name(table.get("project", ANY)):
        yield f'project must be a project\'s name or id, or "*", not {table["project"]!r}'
    if meter not in [*Meter]:
        yield f"meter must be one of {', '.join(Meter)}, not {meter!r}"
    if type(nano_usd) is not int or not 0 <= nano_usd <= MAX_NANO_USD_PER_MILLION:
        yield (
            f"nano_usd_per_million must be an integer from 0 to {MAX_NANO_USD_PER_MILLION}"
            f" (1 USD is 1000000000), not {nano_usd!r}"
        )
    for name in ("effective_from", "effective_to"):
        if name in table:
            yield from _problems_of_instant(name, table[name])
    effective_from, effective_to = table["effective_from"], table.get("effective_to")
    if (
        isinstance(effective_to, datetime)
        and isinstance(effective_from, datetime)
        and effective_to <= effective_from
    ):
        yield f"effective_to must be after effective_from, not {effective_to!s}"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value == value.strip()


def _problems_of_instant(name: str, at: object) -> Iterator[str]:
    if not isinstance(at, datetime) or at.utcoffset() is None:
        yield f"{name} must be an instant with an offset, such as 2026-01-01T00:00:00Z, not {at!s}"
    elif at.microsecond or not FIRST_YEAR <= at.year <= LAST_YEAR:
        yield f"{name} must be a whole second in the years {FIRST_YEAR} to {LAST_YEAR}, not {at!s}"


def _invalid(path: Path, problem: str) -> PriceBookInvalid:
    return PriceBookInvalid(f"price book {path}: {problem}", field="price_book")
