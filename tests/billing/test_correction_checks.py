"""Which corrections of a charge are right, and that every other is found: by the figures alone."""

from fractions import Fraction

import pytest

from billing.correction_checks import Rates, find_wrong
from billing.meters import Meter
from models.ledger_entry import LedgerEntry

PRICE = 333_333  # nano-USD for a million: rounds down wherever it can
TOKENS = Rates(Fraction(PRICE, 10**6), Fraction(PRICE, 10**6))
READ = Rates(Fraction(PRICE, 10**6), Fraction(10 * PRICE, 10**6))
KEPT = Rates(Fraction(PRICE, 3_600 * 10**6), Fraction(0))


def entry(
    meter: Meter, figures: tuple[int, int, int], note: str | None = None, **facts: object
) -> LedgerEntry:
    quantity, amount, without_cache = figures
    return LedgerEntry(
        meter=meter,
        quantity=quantity,
        amount_nano_usd=amount,
        without_cache_nano_usd=without_cache,
        note=note,
        **facts,
    )


@pytest.mark.parametrize(
    ("meter", "rates", "charge", "corrections"),
    [
        # Half of it, all of it back, and more than it was.
        (Meter.OUTPUT_TOKENS, TOKENS, (10, 3, 3), [(-5, -2, -2), (-5, -1, -1), (13, 4, 4)]),
        (Meter.OUTPUT_TOKENS, TOKENS, (10, 3, 3), [(-1, -1, -1), (1, 1, 1)]),
        # Another amount, and then another quantity, at its price again.
        (Meter.INPUT_TOKENS, TOKENS, (10, 3, 3), [(0, -2, -2), (-4, 0, 0), (4, 2, 2)]),
        (Meter.CACHE_READ_TOKENS, READ, (10, 3, 33), [(0, -2, 0), (-1, 1, -4), (-9, -2, -29)]),
        (Meter.CACHE_WRITE_TOKENS, Rates(TOKENS.own, Fraction(0)), (10, 3, 0), [(0, 5, 0), (-10, -8, 0)]),
        # An hour of storage that came to a nano more than its own floor comes to that again.
        (Meter.CACHE_STORAGE_TOKEN_SECONDS, KEPT, (10_000, 1, 0), [(-9_999, -1, 0), (9_999, 1, 0)]),
    ],
)
def test_finds_whatever_is_a_nano_beside(
    meter: Meter, rates: Rates, charge: tuple[int, int, int], corrections: list[tuple[int, int, int]]
) -> None:
    def wrong(figures: list[tuple[int, int, int]]) -> list[str]:
        made = [entry(meter, each, "why") for each in figures]
        return [what for _, what in find_wrong(entry(meter, charge), made, rates)]

    assert wrong(corrections) == []
    for index, right in enumerate(corrections):
        for column, by in ((0, -10), (0, 10), (1, -1), (1, 1), (2, -1), (2, 1)):
            if column == 1 and right[0] == 0:
                continue  # somebody's word
            other = list(right)
            other[column] += by
            if other[0] == 0:
                continue  # it would be about the amount
            changed = tuple(other)
            assert wrong([*corrections[:index], changed, *corrections[index + 1 :]]), (right, changed)  # type: ignore[list-item]


def test_an_amount_alone_must_say_why() -> None:
    charge = entry(Meter.OUTPUT_TOKENS, (10, 3, 3))
    for note, is_right in ((None, False), (" ", False), ("a typo", True)):
        made = [entry(Meter.OUTPUT_TOKENS, (0, -1, -1), note)]
        assert (list(find_wrong(charge, made, TOKENS)) == []) is is_right


def test_nothing_costs_nothing() -> None:
    charge = entry(Meter.OUTPUT_TOKENS, (10, 3, 3))
    made = [entry(Meter.OUTPUT_TOKENS, each, "why") for each in ((-10, -3, -3), (0, 1, 1))]
    assert [what for _, what in find_wrong(charge, made, TOKENS)] == [
        "0 then cost 1 nano-USD and 1 without a cache; it should be 0 and 0"
    ]


def test_a_correction_is_about_what_it_corrects() -> None:
    charge = entry(Meter.OUTPUT_TOKENS, (10, 3, 3), model="a", key_id="k")
    for facts in ({"model": "b", "key_id": "k"}, {"model": "a", "key_id": "l"}):
        made = [entry(Meter.OUTPUT_TOKENS, (-10, -3, -3), **facts)]
        assert [what for _, what in find_wrong(charge, made, TOKENS)] == ["it is about something else"]
