"""Closing a month: from then on its bill stays as it is, and what turns up late for it is billed as a correction later."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from billing.months import check_month, end_of
from core.errors import InvalidArgument, PeriodNotOver
from models import billing_period as rows
from models.billing_period import BillingPeriod, PeriodState
from models.ledger_entry import sum_of_period
from models.project import first_creation
from models.storage_segment import find_unposted_before
from models.usage import find_unposted

# What occurred in a month is on record by then: a unit of work lasts seconds.
GRACE = timedelta(hours=1)


def close_month(session: Session, month: str, now: datetime) -> BillingPeriod:
    """Close a month, YYYY-MM in UTC, in the caller's write unit; one that is closed already stays as it is.

    Raises PeriodNotOver until it is over and all that occurred in it is posted, InvalidArgument for what is no month, and for
    one from before the first project.
    """
    end = end_of(check_month(month))
    began = first_creation(session)
    # A clock that ran ahead when the first project was made says nothing of a month that has charges.
    if (began is None or end <= began) and not sum_of_period(session, month):
        raise InvalidArgument(
            f"{month} was over before there was any project: nothing is owed for it.", field="month"
        )
    if now < end + GRACE:
        raise PeriodNotOver(
            f"{month} can be closed from {end + GRACE:%Y-%m-%dT%H:%MZ} on, an hour after it is over.",
            field="month",
        )
    period = rows.lock_period(session, month)
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
