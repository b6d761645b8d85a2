"""The price book: a TOML file of dated prices, read strictly. It knows nothing of the database."""

import codecs
import tomllib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from billing.price import Price, in_order, in_words
from billing.price_checks import check_sane, check_unbroken
from billing.price_rows import find_problem, read_price
from core.errors import PriceBookInvalid

EXAMPLE_PRICE_BOOK = Path(__file__).parent / "price_books" / "example.toml"
MAX_BYTES = 1024 * 1024
_NOT_UTF_8 = "it is not written in UTF-8, perhaps in UTF-16; let your editor save it as UTF-8"


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
        problem = find_problem(table)
        if problem is not None:
            raise _invalid(path, f"price {number}: {problem}")
        prices.append(read_price(table))
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
        return tomllib.loads(_text(path, content))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid(path, f"it is not TOML: {error}") from error
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        raise _invalid(path, "it has a number that is far too long; write prices in nano-USD") from error


def _text(path: Path, content: bytes) -> str:
    """Some editors write a mark before UTF-8, which says nothing, or UTF-16, where every other byte is 0."""
    if b"\0" in content:
        raise _invalid(path, _NOT_UTF_8)
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise _invalid(path, _NOT_UTF_8) from error


def _invalid(path: Path, problem: str) -> PriceBookInvalid:
    return PriceBookInvalid(f"price book {path}: {problem}", field="price_book")
