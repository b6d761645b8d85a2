from datetime import UTC, datetime, timedelta

import pytest

from api.dialects.gemini.times import parse_duration, parse_expiry, parse_timestamp
from core.errors import InvalidArgument

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MONTH = timedelta(days=30)


class TestParseDuration:
    @pytest.mark.parametrize(
        ("text", "microseconds"),
        [
            ("300s", 300_000_000),
            ("3.5s", 3_500_000),
            ("0.000001s", 1),
            ("1.000000999s", 1_000_000),
            ("007s", 7_000_000),
        ],
    )
    def test_reads_seconds_with_up_to_nine_decimals(self, text: str, microseconds: int) -> None:
        assert parse_duration(text, "ttl") == timedelta(microseconds=microseconds)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "s",
            "5m",
            "300",
            "-1s",
            "0s",
            "0.0000001s",
            "1.0000000001s",
            "1e3s",
            " 3s",
            "3s ",
            "+3s",
            "٣s",
            "9" * 13 + "s",
            "3.s",
            ".5s",
            "999999999999s999",
            "300S",
        ],
    )
    def test_refuses_anything_else_and_names_the_field(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match=r"'a\.ttl'") as caught:
            parse_duration(text, "a.ttl")
        assert caught.value.field == "a.ttl"

    def test_a_life_of_thousands_of_years_is_read(self) -> None:
        assert parse_duration("999999999999s", "ttl") == timedelta(seconds=999_999_999_999)


class TestParseTimestamp:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2026-11-29T12:00:00Z", NOW),
            ("2026-11-29t12:00:00z", NOW),
            ("2026-11-29T12:00:00", NOW),
            ("2026-11-29T14:00:00+02:00", NOW),
            ("2026-11-29T06:30:00-05:30", NOW),
            ("2026-11-29T12:00:00.1Z", NOW + timedelta(milliseconds=100)),
            ("2026-11-29T12:00:00.123456789Z", NOW + timedelta(microseconds=123456)),
            ("2026-11-29T12:00:00.000001+00:00", NOW + timedelta(microseconds=1)),
        ],
    )
    def test_reads_rfc_3339_and_takes_no_offset_for_utc(self, text: str, expected: datetime) -> None:
        assert parse_timestamp(text, "expire_time") == expected

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "tomorrow",
            "2026-11-29",
            "2026-11-29 12:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-11-29T25:00:00Z",
            "2026-11-29T12:00:60Z",
            "2026-11-29T12:00:00.1234567890Z",
            "2026-11-29T12:00Z",
            "0001-01-01T00:00:00+01:00",
            "2026-11-29T12:00:00+24:00",
            "2026-11-29T12:00:00+0200",
            "1764417600",
        ],
    )
    def test_refuses_anything_else(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="expire_time"):
            parse_timestamp(text, "expire_time")


class TestParseExpiry:
    def test_neither_is_none(self) -> None:
        assert parse_expiry(None, None, NOW, MONTH) is None

    def test_both_are_a_oneof_violation(self) -> None:
        with pytest.raises(InvalidArgument, match="expiration"):
            parse_expiry("300s", "2026-12-01T00:00:00Z", NOW, MONTH)

    def test_a_past_instant_is_refused_and_so_is_the_present_one(self) -> None:
        for text in ("2026-11-29T11:59:59.999999Z", "2026-11-29T12:00:00Z"):
            with pytest.raises(InvalidArgument, match="in the future"):
                parse_expiry(None, text, NOW, MONTH)

    @pytest.mark.parametrize(
        ("ttl", "expire_time"),
        [("2592000.000001s", None), (None, "2026-12-29T12:00:00.000001Z"), (None, "9999-12-31T23:59:59Z")],
    )
    def test_a_longer_life_than_the_longest_is_refused(
        self, ttl: str | None, expire_time: str | None
    ) -> None:
        with pytest.raises(InvalidArgument, match="at most 2592000"):
            parse_expiry(ttl, expire_time, NOW, MONTH)

    def test_the_longest_life_itself_passes(self) -> None:
        assert parse_expiry("2592000s", None, NOW, MONTH) == MONTH
        assert parse_expiry(None, "2026-12-29T12:00:00Z", NOW, MONTH) == NOW + MONTH
