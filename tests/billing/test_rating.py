from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from math import floor

import pytest
from hypothesis import given, strategies as st

from billing.rating import seconds_between, storage_charge, token_charge, whole_second

TOKENS = st.integers(0, 10**7)
PRICES = st.integers(0, 10**15)
SECONDS = st.integers(0, 400 * 86_400)


class TestTokenCharge:
    @pytest.mark.parametrize(
        ("tokens", "price", "amount"),
        [
            (0, 10**9, 0),
            (1, 0, 0),
            (1, 999_999, 0),
            (1, 10**6, 1),
            (999_999, 1, 0),
            (4096, 10_000_000, 40_960),
        ],
    )
    def test_rounds_down(self, tokens: int, price: int, amount: int) -> None:
        assert token_charge(tokens, price) == amount

    @given(TOKENS, PRICES)
    def test_equals_the_exact_fraction_rounded_down(self, tokens: int, price: int) -> None:
        assert token_charge(tokens, price) == floor(Fraction(tokens * price, 10**6))

    def test_keeps_hits_and_input_apart(self) -> None:
        # 246,750 tokens of prompt, 240,000 of them read: charging all of it as input is the classic mistake.
        read, fresh = token_charge(240_000, 125_000_000), token_charge(6_750, 1_250_000_000)
        assert (read, fresh) == (30_000_000, 8_437_500)
        assert read + fresh < token_charge(246_750, 1_250_000_000)


class TestStorageCharge:
    def test_a_million_tokens_for_an_hour_cost_the_price(self) -> None:
        assert storage_charge(10**6, range(3600), 10**9) == 10**9

    def test_no_second_costs_nothing(self) -> None:
        assert storage_charge(10**6, range(5, 5), 10**15) == 0

    @given(TOKENS, PRICES, st.lists(SECONDS, min_size=2, max_size=40))
    def test_any_cut_sums_to_the_whole(self, tokens: int, price: int, edges: list[int]) -> None:
        edges.sort()
        pieces = [storage_charge(tokens, range(a, b), price) for a, b in pairwise(edges)]
        assert sum(pieces) == storage_charge(tokens, range(edges[0], edges[-1]), price)
        assert min(pieces) >= 0

    @given(TOKENS, PRICES, SECONDS)
    def test_a_whole_life_is_the_exact_fraction_rounded_down(
        self, tokens: int, price: int, seconds: int
    ) -> None:
        exact = Fraction(tokens * seconds * price, 3600 * 10**6)
        assert storage_charge(tokens, range(seconds), price) == floor(exact)


class TestSeconds:
    @given(st.datetimes(), st.datetimes())
    def test_billed_seconds_are_a_difference_of_floors(self, one: datetime, other: datetime) -> None:
        start, end = sorted((one.replace(tzinfo=UTC), other.replace(tzinfo=UTC)))
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        micros = [(instant - epoch) // timedelta(microseconds=1) for instant in (start, end)]
        billed = seconds_between(whole_second(start), whole_second(end))
        assert billed == micros[1] // 10**6 - micros[0] // 10**6
