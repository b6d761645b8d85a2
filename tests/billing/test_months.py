from datetime import UTC, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from billing.months import by_month, check_month, end_of
from billing.statement import month_period
from core.errors import InvalidArgument
from tests.billing.rows import T0


def test_months_tile_whatever_they_cut() -> None:
    start, end = T0, T0 + timedelta(days=400)
    pieces = list(by_month(start, end))
    assert (pieces[0][1], pieces[-1][2], len(pieces)) == (start, end, 14)
    for (month, _, until), (_, begin, _) in pairwise(pieces):
        assert until == begin == end_of(month)
    assert list(by_month(end, end)) == []


def test_what_is_no_month_of_a_bill_is_refused() -> None:
    no_form = ["2026-13", "2026-3", "March", "", "2026-00", "2026-03-01", "2026-03\n", "٢٠٢٦-03", "\udcff"]
    no_year = ["0000-01", "0001-01", "0999-12", "1969-12", "9999-01", "9999-12"]
    for month in (*no_form, *no_year):
        with pytest.raises(InvalidArgument, match="month must be written as 2026-01, from 1970-01") as caught:
            check_month(month)
        assert caught.value.field == "month"


def test_the_first_and_the_last_have_hours_in_every_time_zone() -> None:
    for month in ("1970-01", "9998-12"):
        for name in ("America/New_York", "Pacific/Kiritimati", "UTC"):
            period = month_period(month, ZoneInfo(name))
            assert period.end - period.start == timedelta(days=31)
    assert end_of("9998-12").tzinfo is UTC
