from datetime import UTC, datetime

import pytest

from billing.periods import Bucket, Period, bucket_of, has_cut_end, parse_period, parse_zone
from core.errors import InvalidArgument

NOW = datetime(2026, 3, 31, 23, 59, 59, 999_999, tzinfo=UTC)


class TestParsePeriod:
    def test_is_this_month_so_far_when_nothing_is_said(self) -> None:
        assert parse_period(None, None, NOW) == Period(datetime(2026, 3, 1, tzinfo=UTC), NOW)

    def test_the_first_instant_of_a_month_is_an_empty_period(self) -> None:
        first = datetime(2026, 3, 1, tzinfo=UTC)
        assert parse_period(None, None, first) == Period(first, first)

    def test_reads_any_offset(self) -> None:
        period = parse_period("2026-01-01T00:00:00+02:00", "2026-01-01t05:30:00+05:30", NOW)
        assert period.start == datetime(2025, 12, 31, 22, tzinfo=UTC)
        assert period.end == datetime(2026, 1, 1, tzinfo=UTC)
        assert period.start.tzinfo is UTC

    @pytest.mark.parametrize("field", ["start", "end"])
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "yesterday",
            "2026-1-1",
            "2026",
            "2026-13",
            "2026-02-30",
            "2026-01-01T00:00:00",
            "2026-01-01 00:00:00Z",
            "20260101T000000Z",
            "2026-W01-1T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01T25:00:00Z",
            "2026-01-01T00:00:00+25:00",
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-14:00",
            "١٢٣٤-01-01T00:00:00Z",
            "2026-01-01T00:00:00Z\n",
        ],
    )
    def test_refuses_what_is_no_instant_and_names_the_field(self, field: str, text: str) -> None:
        with pytest.raises(InvalidArgument, match=f"^{field} ") as caught:
            parse_period(text if field == "start" else None, text if field == "end" else None, NOW)
        assert caught.value.field == field

    @pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati"])
    @pytest.mark.parametrize("field", ["start", "end"])
    def test_refuses_years_that_have_no_price_and_works_in_all_others(self, field: str, zone: str) -> None:
        where = parse_zone(zone)
        for text in (
            *("0001-01-01T00:00:00Z", "0001-01", "0001-01-01", "1969-12-31", "1969-12-31T23:00:00Z"),
            *("9999-01", "9999-12-31", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00"),
        ):
            with pytest.raises(InvalidArgument, match=f"^{field} .* the years 1970 to 9998") as caught:
                parse_period(text if field == "start" else None, text if field == "end" else None, NOW, where)
            assert caught.value.field == field
        for period in (
            parse_period("1970-01", "9998-12-31", NOW, where),
            parse_period("1970-01-01T00:00:00+14:00", "9998-12-31T23:59:59-14:00", NOW, where),
        ):
            has_cut_end(period, where)
            for hour in (period.start, period.end):
                assert [bucket_of(hour, bucket, where) for bucket in Bucket]

    @pytest.mark.parametrize(
        "text", ["2026-01-01T00:30:00Z", "2026-01-01T00:00:00.25Z", "2026-01-01T00:00:00+05:30"]
    )
    def test_refuses_an_instant_within_an_hour(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="whole hour of UTC"):
            parse_period(text, None, NOW)

    def test_hints_at_a_plus_that_was_lost_on_the_way(self) -> None:
        with pytest.raises(InvalidArgument, match="%2B"):
            parse_period("2026-01-01T00:00:00 02:00", None, NOW)

    def test_refuses_a_reversed_period(self) -> None:
        with pytest.raises(InvalidArgument, match="start lies after end") as caught:
            parse_period("2026-02-01T00:00:00Z", "2026-01-31T23:00:00Z", NOW)
        assert caught.value.field == "start"


class TestPeriod:
    def test_refuses_naive_instants(self) -> None:
        naive = NOW.replace(tzinfo=None)
        for start, end in ((naive, NOW), (NOW, naive)):
            with pytest.raises(InvalidArgument, match="offset"):
                Period(start, end)


class TestZones:
    def test_days_and_months_are_those_of_the_zone(self) -> None:
        vienna = parse_zone("Europe/Vienna")
        assert parse_period("2026-03-29", "2026-03-30", NOW, vienna) == Period(
            datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 3, 29, 22, tzinfo=UTC)
        )  # that day had 23 hours
        assert parse_period("2026-07", "2026-08", NOW, vienna) == Period(
            datetime(2026, 6, 30, 22, tzinfo=UTC), datetime(2026, 7, 31, 22, tzinfo=UTC)
        )
        # There it is April already.
        assert parse_period(None, None, NOW, vienna).start == datetime(2026, 3, 31, 22, tzinfo=UTC)

    def test_none_is_utc(self) -> None:
        assert parse_zone(None) is UTC

    @pytest.mark.parametrize(
        "name", ["", "Nowhere", "Europe/Wien", "../../etc/passwd", "/etc/localtime", "UTC\0", "x" * 5000]
    )
    def test_refuses_what_is_no_zone(self, name: str) -> None:
        with pytest.raises(InvalidArgument, match="no time zone") as caught:
            parse_zone(name)
        assert caught.value.field == "timeZone"
