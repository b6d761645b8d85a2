from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from billing.money import usd
from cli.tables import instant_text


class TestUsd:
    @pytest.mark.parametrize(
        ("nano_usd", "text"),
        [
            (0, "0.000000000"),
            (1, "0.000000001"),
            (999_999_999, "0.999999999"),
            (10**9, "1.000000000"),
            (2**63 + 1, "9223372036.854775809"),
            (-1, "-0.000000001"),
        ],
    )
    def test_is_exact(self, nano_usd: int, text: str) -> None:
        assert usd(nano_usd) == text

    @given(st.integers(-(10**30), 10**30))
    def test_reads_back(self, nano_usd: int) -> None:
        assert int(usd(nano_usd).replace(".", "")) == nano_usd


class TestInstantText:
    def test_is_utc(self) -> None:
        at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
        assert instant_text(at) == "2025-12-31T23:00:00Z"
        assert instant_text(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00Z"

    def test_of_nothing_is_empty(self) -> None:
        assert instant_text(None) == ""
