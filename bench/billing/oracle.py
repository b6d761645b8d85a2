"""What a life comes to, by exact fractions, each rounded down once. It shares no line with what it checks."""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from math import floor

from bench.billing.entries import Figures, correctable, correction_of
from bench.billing.history import Closed, Corrected, Fact, Kept, Looked, Used, Written
from bench.billing.lives import (
    ANY,
    IMPLICIT,
    INPUT,
    MODEL,
    OUTPUT,
    PROJECT,
    READ,
    SECOND,
    STORAGE,
    WRITE,
    Change,
    Life,
)
from bench.billing.months import hour_number, month_of, month_of_hour, next_month, seconds_left


class Oracle:
    """Takes the facts of a life one after the other, and knows at each what is on record, and what is owed."""

    def __init__(self, life: Life) -> None:
        self.record: dict[str, Figures] = {}
        self.closed: dict[str, int] = {}  # month: what it came to
        self.owed = 0  # at the last look
        self._tariffs = _tariffs(life.changes)
        # By name of the charge: for a million units, and for the same without a cache.
        self._prices: dict[str, tuple[int, int]] = {}

    def take(self, fact: Fact) -> None:
        match fact:
            case Written():
                self._charge("write", WRITE, fact.tokens, fact.at, fact.at)
            case Used():
                self._use(fact)
            case Kept():
                for second, hour, quantity, amount, price in self._storage(fact):
                    name = f"storage:{second}"
                    self._prices[name] = price, 0
                    self.record[name] = self._entry(STORAGE, hour, fact.now, quantity, amount, 0)
            case Closed():
                self.closed[fact.month] = sum(
                    each.amount for each in self.record.values() if each.month == fact.month
                )
            case Corrected():
                self._correct(fact)
            case Looked():
                self.owed = sum(each.amount for each in self.record.values())
                if fact.kept is not None:
                    self.owed += sum(amount for _, _, _, amount, _ in self._storage(fact.kept))

    def _use(self, fact: Used) -> None:
        parts = {
            READ: fact.named,
            IMPLICIT: fact.implicit,
            INPUT: fact.suffix - fact.implicit,
            OUTPUT: fact.output,
        }
        for meter, tokens in parts.items():
            if tokens:
                self._charge(f"r{fact.number}", meter, tokens, fact.created, fact.occurred)

    def _charge(self, about: str, meter: str, tokens: int, priced_at: int, occurred: int) -> None:
        own = self._price(meter, priced_at).nano_usd
        without = (
            0 if meter == WRITE else self._price(OUTPUT if meter == OUTPUT else INPUT, priced_at).nano_usd
        )
        amounts = (floor(Fraction(price, 10**6) * tokens) for price in (own, without))
        name, hour = f"{about}:{meter}", hour_number(occurred)
        self.record[name] = self._entry(meter, hour, occurred, tokens, *amounts)
        self._prices[name] = own, without

    def _entry(self, meter: str, hour: int, now: int, quantity: int, amount: int, without: int) -> Figures:
        month = month_of_hour(hour)
        is_late = month in self.closed
        return Figures(
            meter, hour, is_late, self._open_month(now) if is_late else month, quantity, amount, without
        )

    def _open_month(self, now: int) -> str:
        month = month_of(now)
        while month in self.closed:
            month = next_month(month)
        return month

    def _correct(self, fact: Corrected) -> None:
        name = correctable(self.record, fact.pick)
        if name is None:
            return
        was = self.record[name]
        stands = [was, *(self.record[each] for each in self.record if each.startswith(f"correction:{name}:"))]
        quantity = sum(each.quantity for each in stands)
        amount = sum(each.amount for each in stands)
        without = sum(each.without_cache for each in stands)
        wanted = self._wanted(name, was, fact, quantity, without)
        if wanted is None or wanted == (quantity, amount, without):
            return
        self.record[correction_of(name, self.record)] = Figures(
            was.meter,
            was.hour,
            True,
            self._open_month(fact.now),
            wanted[0] - quantity,
            wanted[1] - amount,
            wanted[2] - without,
        )

    def _wanted(
        self, name: str, was: Figures, fact: Corrected, quantity: int, without: int
    ) -> tuple[int, int, int] | None:
        """Quantity, nano-USD, and those without a cache; None where there is nothing that could cost something."""
        if fact.is_of_amount:
            amount = was.amount * fact.eighths // 8
            if was.meter in (INPUT, OUTPUT):
                without = amount
            return (quantity, amount, without) if quantity else None
        quantity = was.quantity * fact.eighths // 8
        if quantity == was.quantity:
            return was.quantity, was.amount, was.without_cache
        units = Fraction(quantity, 3_600 if was.meter == STORAGE else 1)
        own, computed = (floor(units * Fraction(price, 10**6)) for price in self._prices[name])
        return quantity, own, computed

    def _storage(self, kept: Kept) -> Iterator[tuple[int, int, int, int, int]]:
        """Second of the life at which a charge begins, its hour, token-seconds, nano-USD, and the price.

        Under one price all that was kept so far is rounded down, and each hour pays what that has grown by.
        """
        first, last = kept.first // SECOND, kept.last // SECOND
        start, end = kept.start // SECOND, kept.end // SECOND
        for begin, until, price in self._stretches(first, last):
            second = max(begin, start)
            paid = _rounded(kept.tokens * (second - begin), price)
            while second < min(until, end):
                stop = min(until, end, second + seconds_left(second))
                so_far = _rounded(kept.tokens * (stop - begin), price)
                hour, token_seconds = hour_number(second * SECOND), kept.tokens * (stop - second)
                yield second, hour, token_seconds, so_far - paid, price.nano_usd
                second, paid = stop, so_far

    def _stretches(self, first: int, last: int) -> Iterator[tuple[int, int, Change]]:
        """The life of a cache, cut where another price begins to apply to it."""
        changes = {at // SECOND for at in self._edges if first < at // SECOND < last}
        begin, price = first, self._price(STORAGE, first * SECOND)
        for second in sorted(changes):
            following = self._price(STORAGE, second * SECOND)
            if following is not price:
                yield begin, second, price
                begin, price = second, following
        if begin < last:
            yield begin, last, price

    @property
    def _edges(self) -> set[int]:
        prices = [each for tariff in self._tariffs[STORAGE] for each in tariff]
        return {each.at for each in prices} | {each.until for each in prices if each.until is not None}

    def _price(self, meter: str, at: int) -> Change:
        """Of the project for the model, of the project, for the model, of everybody: the first that holds."""
        for tariff in self._tariffs[meter]:
            begun = [change for change in tariff if change.at <= at]
            if begun and (begun[-1].until is None or at < begun[-1].until):
                return begun[-1]
        raise LookupError(f"{meter} has no price at {at}")


def _tariffs(changes: list[Change]) -> dict[str, list[list[Change]]]:
    """For each meter the prices that can apply, by whose they are, in order of time."""
    found: dict[tuple[str, str, str], list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda each: each.at):
        found[change.subject].append(change)
    whose = [(PROJECT, MODEL), (PROJECT, ANY), (ANY, MODEL), (ANY, ANY)]
    return {
        meter: [found[(*each, meter)] for each in whose if (*each, meter) in found]
        for _, _, meter in [*found]
    }


def _rounded(token_seconds: int, price: Change) -> int:
    return floor(Fraction(token_seconds, 3_600) * Fraction(price.nano_usd, 10**6))
