"""Closing a month: from then on its bill stays as it is, and what turns up late for it is billed as a correction later."""

import re
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from billing.months import end_of
from core.errors import InvalidArgument, PeriodNotOver
from models import billing_period as rows
from models.billing_period import BillingPeriod, PeriodState
from models.ledger_entry import sum_of_period
from models.storage_segment import find_unposted_before
from models.usage import find_unposted

MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])", re.ASCII)
# What occurred in a month is on record by then: a unit of work lasts seconds.
GRACE = timedelta(hours=1)


def close_month(session: Session, month: str, now: datetime) -> BillingPeriod:
    """Close a month, YYYY-MM in UTC, in the caller's write unit; one that is closed already stays as it is.

    Raises PeriodNotOver until it is over and all that occurred in it is posted, InvalidArgument for what is no month.
    """
    if not MONTH.fullmatch(month):
        raise InvalidArgument(f"month must be written as 2026-01, not {month[:64]!r}.", field="month")
    end = end_of(month)
    if now < end + GRACE:
        raise PeriodNotOver(
            f"{month} can be closed from {end + GRACE:%Y-%m-%dT%H:%MZ} on, an hour after it is over.",
            field="month",
        )
    rows.is_open(session, month)  # so that there is a row to hold
    period = rows.lock_period(session, month)
    assert period is not None
    if period.state == PeriodState.CLOSED:
        return period
    late = find_unposted_before(session, end) or find_unposted(session, end)
    if late is not None:
        raise PeriodNotOver(
            f"Not all of {month} is posted yet ({late}). A running server posts it within minutes; "
            "`headstart billing post` does it now.",
            field="month",
        )
    rows.close(session, period, now, sum_of_period(session, month))
    return period
