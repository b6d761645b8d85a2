"""A made-up month of a made-up customer, lived through in a real database by the functions that a server uses.

October 2026: a handbook that is asked all day, contracts that are cached from Monday to Friday, macros for support, and an archive
that hardly anybody asks. Prices fall on the 16th, one answer is corrected, and the month is closed. Dice with a fixed seed make
ids, times and numbers of tokens, so the month is always the same.
"""

from datetime import UTC, datetime, timedelta
from random import Random

from sample_customer import Customer

from billing.bookkeeping import keep_books
from billing.closing import close_month
from billing.meters import Meter
from billing.price import ANY, Price
from billing.price_book import PriceBook, make_book
from models.session import Database

MONTH = "2026-10"
BEGINNING = datetime(2026, 10, 1, tzinfo=UTC)
PRICES_CHANGE = datetime(2026, 10, 16, tzinfo=UTC)
END = datetime(2026, 11, 2, 8, tzinfo=UTC)  # when the statement is made
# In nano-USD for a million tokens, or token-hours: until the 16th, and from then on.
PRICES = {
    Meter.CACHE_WRITE_TOKENS: (1_500_000_000, 1_500_000_000),
    Meter.CACHE_STORAGE_TOKEN_SECONDS: (500_000_000, 400_000_000),
    Meter.CACHE_READ_TOKENS: (150_000_000, 150_000_000),
    Meter.IMPLICIT_CACHE_READ_TOKENS: (150_000_000, 150_000_000),
    Meter.INPUT_TOKENS: (1_500_000_000, 1_500_000_000),
    Meter.OUTPUT_TOKENS: (6_000_000_000, 5_000_000_000),
}
HANDBOOK, CONTRACTS, MACROS, ARCHIVE = "Product handbook", "Contracts 2026", "Support macros", "Archive 2019"
TOKENS = {HANDBOOK: 96_000, CONTRACTS: 180_000, MACROS: 22_000, ARCHIVE: 60_000}
# Requests from Monday to Friday, and on Saturday and Sunday; at least, and at most.
_TIMES: dict[str | None, tuple[tuple[int, int], tuple[int, int]]] = {
    HANDBOOK: ((18, 28), (1, 5)),
    CONTRACTS: ((7, 15), (0, 0)),
    MACROS: ((11, 20), (1, 5)),
    None: ((4, 9), (0, 2)),
}
_ARCHIVE_DAYS = (12, 13, 19)
_FATAL_DAY = 20  # an answer runs on; the day after, most of it is taken back
_NOTE = "A fault of ours let this answer run on. Only its first 400 tokens are charged."
_FRIDAY, _SATURDAY = 4, 5


def live_through(database: Database) -> Customer:
    """Let the month happen in an empty database, up to the second of November, with its books kept and the month closed."""
    customer = Customer(database, _book(), BEGINNING)
    day = BEGINNING
    while day < END:
        _morning(customer, day)
        _office_hours(customer, day)
        _evening(customer, day)
        day += timedelta(days=1)
        customer.clock.at = min(day + timedelta(minutes=1), END)
        keep_books(database, customer.clock)
        if day == datetime(2026, 11, 1, tzinfo=UTC):
            customer.clock.at = day + timedelta(hours=3)
            with database.write() as session:
                close_month(session, MONTH, customer.clock.now())
    return customer


def _morning(customer: Customer, day: datetime) -> None:
    """Half past seven: what lives is kept for another day, and what is needed is made."""
    customer.clock.at = day + timedelta(hours=7, minutes=30)
    is_october = day.month == BEGINNING.month
    for name, first in ((HANDBOOK, 1), (MACROS, 5)):
        if name in customer.caches:
            customer.extend(name, timedelta(hours=30))
        elif is_october and day.day == first:
            customer.create(name, TOKENS[name], timedelta(hours=30))
    if is_october and day.weekday() < _SATURDAY and CONTRACTS not in customer.caches:
        customer.create(CONTRACTS, TOKENS[CONTRACTS], timedelta(days=5))
    if is_october and day.day == _ARCHIVE_DAYS[0]:
        customer.create(ARCHIVE, TOKENS[ARCHIVE], timedelta(days=30))


def _office_hours(customer: Customer, day: datetime) -> None:
    """Requests between eight and half past five, in the order of time."""
    asked: list[tuple[datetime, str | None]] = []
    for name, (weekday, weekend) in _TIMES.items():
        if name is None or name in customer.caches:
            times = customer.dice.randint(*(weekend if day.weekday() >= _SATURDAY else weekday))
            asked += [(_some_time(customer.dice, day), name) for _ in range(times)]
    if ARCHIVE in customer.caches and day.day in _ARCHIVE_DAYS:
        asked += [(_some_time(customer.dice, day), ARCHIVE) for _ in range(2)]
    with customer.database.write() as session:
        for at, name in sorted(asked, key=lambda each: each[0]):
            if at < END:
                customer.ask(session, at, name)


def _evening(customer: Customer, day: datetime) -> None:
    """Half past six: the week ends for the contracts; and one answer goes wrong, or is put right."""
    customer.clock.at = day + timedelta(hours=18, minutes=30)
    if day.weekday() == _FRIDAY and CONTRACTS in customer.caches:
        customer.delete(CONTRACTS)
    if day.day == _FATAL_DAY:
        with customer.database.write() as session:
            customer.astray = customer.ask(session, customer.clock.at, HANDBOOK, output=7_800)
    if day.day == _FATAL_DAY + 1:
        customer.take_back(customer.astray, Meter.OUTPUT_TOKENS, 400, _NOTE)


def _some_time(dice: Random, day: datetime) -> datetime:
    return day + timedelta(hours=8, seconds=dice.randint(0, 9 * 3600 + 1800))


def _book() -> PriceBook:
    def price(meter: Meter, amount: int, since: datetime) -> Price:
        return Price(ANY, ANY, meter, since, None, amount)

    since = datetime(2026, 1, 1, tzinfo=UTC)
    prices = [price(meter, before, since) for meter, (before, _) in PRICES.items()]
    prices += [
        price(meter, after, PRICES_CHANGE) for meter, (before, after) in PRICES.items() if after != before
    ]
    return make_book("sample", prices)
