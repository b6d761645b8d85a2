"""One [[price]] table of a price book: what is wrong with it, and the price that it is."""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time

from billing.meters import Meter
from billing.price import ANY, Price

MAX_NANO_USD_PER_MILLION = 10**13  # 10,000 USD; keeps any amount a database integer
MAX_NAME = 255  # characters: a database's index holds no text of any length
FIRST = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)  # any offset can be taken off
NEEDED = frozenset({"model", "meter", "nano_usd_per_million", "effective_from"})
FIELDS = NEEDED | {"project", "effective_to"}


def find_problem(table: Mapping[str, object]) -> str | None:
    """The first thing that is wrong with a price, in words with the field and the remedy; None where nothing is."""
    return next(_problems(table), None)


def read_price(table: Mapping[str, object]) -> Price:
    """The price of a table that has no problem."""
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


def _problems(table: Mapping[str, object]) -> Iterator[str]:
    """Only the first is to be looked at: what follows takes for granted that it is repaired."""
    for name in sorted(NEEDED - table.keys()):
        yield f"{name} is missing; add it"
    for name in sorted(table.keys() - FIELDS):
        yield f"{name} is not known; the fields are {', '.join(sorted(FIELDS))}"
    model, meter, nano_usd = table["model"], table["meter"], table["nano_usd_per_million"]
    if not _is_name(model) or str(model).startswith("models/"):
        yield f'model must be a served model\'s name without "models/", or "*", not {_shown(model)}'
    if not _is_name(table.get("project", ANY)):
        yield f'project must be a project\'s name or id, or "*", not {_shown(table["project"])}'
    if meter not in [*Meter]:
        yield f"meter must be one of {', '.join(Meter)}, not {_shown(meter)}"
    if type(nano_usd) is not int or not 0 <= nano_usd <= MAX_NANO_USD_PER_MILLION:
        yield (
            f"nano_usd_per_million must be an integer from 0 to {MAX_NANO_USD_PER_MILLION}"
            f" (1 USD is 1000000000), not {_shown(nano_usd)}"
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
    """Whether a database can hold it and people can see it: no text is both that has a NUL or a line break in it."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MAX_NAME
        and value.isprintable()
        and value == value.strip()
    )


def _problems_of_instant(name: str, at: object) -> Iterator[str]:
    if not isinstance(at, datetime) or at.utcoffset() is None:
        yield f"{name} must be an instant with an offset, such as 2026-01-01T00:00:00Z, not {_shown(at)}"
    elif at.microsecond or not FIRST <= at <= LAST:
        yield f"{name} must be a whole second in the years {FIRST.year} to {LAST.year} of UTC, not {at!s}"


def _shown(value: object) -> str:
    """As people may see it, and not at any length."""
    if isinstance(value, date | time):
        return str(value)
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or tables in tables
        return "what it is"
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"
