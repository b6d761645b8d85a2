"""Setting limits, and showing how much of each is used. What runs and lives at that moment counts from the first on."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from billing.counters import make_counter
from billing.holds import hold_what_is_open, let_go_if_free
from billing.months import end_of, month_of
from billing.terms import lock_alone
from core.errors import InvalidArgument, KeyNotFound, LimitNotFound
from models import limit as rows
from models.api_key import find_api_key
from models.hold import list_holds, sum_held
from models.ledger_entry import sum_counted
from models.limit import WHOLE, Limit
from models.project import get_project

MOST_NANO_USD = 10**18  # a billion USD; sums of it still fit the database's integers


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit in a month: what was charged, and what is held for what runs and for caches that live."""

    limit: Limit
    month: str
    spent_nano_usd: int
    held_nano_usd: int

    @property
    def left_nano_usd(self) -> int | None:
        """What can still be asked for; None without a hard limit. Negative where a limit was set below what is used."""
        hard = self.limit.hard_nano_usd
        return None if hard is None else hard - self.spent_nano_usd - self.held_nano_usd

    @property
    def is_soft_reached(self) -> bool:
        return self.limit.soft_nano_usd is not None and self.spent_nano_usd >= self.limit.soft_nano_usd

    @property
    def resets_at(self) -> datetime:
        return end_of(self.month)


def set_limit(
    session: Session,
    project_id: str,
    key_id: str | None,
    *,
    hard_nano_usd: int | None,
    soft_nano_usd: int | None,
    now: datetime,
) -> LimitStatus:
    """Limit what a project, or one of its keys, may spend in a month from now on, in the caller's write unit.

    What it spent in this month counts, and what runs and lives is held. A limit below that refuses what is new, and takes
    nothing away. Raises InvalidArgument, and KeyNotFound for a key that is not the project's.
    """
    _check(hard_nano_usd, soft_nano_usd)
    terms = lock_alone(session, project_id)
    if key_id is not None:
        _check_key(session, project_id, key_id)
    limit = Limit(
        project_id=project_id,
        key_id=key_id or WHOLE,
        hard_nano_usd=hard_nano_usd,
        soft_nano_usd=soft_nano_usd,
        set_at=now,
    )
    rows.put_limit(session, limit)
    hold_what_is_open(session, project_id, terms)
    for month in sorted({month_of(now), *(hold.month for hold in list_holds(session, project_id))}):
        make_counter(session, limit, month)
    rows.forget_told(session, limit, month_of(now))
    return _status(session, limit, month_of(now))


def remove_limit(session: Session, project_id: str, key_id: str | None) -> None:
    """Take a limit away, in the caller's write unit; raises LimitNotFound."""
    lock_alone(session, project_id)
    if rows.find_limit(session, project_id, key_id or WHOLE) is None:
        project = f"project {get_project(session, project_id).name}"
        whose = project if key_id is None else f"key {key_id[:64]} of {project}"
        raise LimitNotFound(
            f"There is no limit on {whose}. `headstart billing limits list` shows them.", field="limit"
        )
    rows.remove_limit(session, project_id, key_id or WHOLE)
    let_go_if_free(session, project_id)


def list_status(session: Session, project_id: str | None, now: datetime) -> list[LimitStatus]:
    """How much of each limit is used this month, of one project or, with None, of all. A read unit is enough."""
    return [_status(session, limit, month_of(now)) for limit in rows.list_limits(session, project_id)]


def tell_soft_limits(session: Session, now: datetime) -> list[LimitStatus]:
    """Give the limits whose soft amount was reached since this was last asked: each once in a month that is not over.

    Whoever asks tells of them before the unit ends: were it to end first and the process with it, nobody would be told.
    """
    told = []
    for counter, limit in rows.lock_soft_reached(session, month_of(now)):
        counter.soft_told_at = now
        told.append(LimitStatus(limit, counter.month, counter.spent_nano_usd, counter.held_nano_usd))
    session.flush()
    return told


def _status(session: Session, limit: Limit, month: str) -> LimitStatus:
    counter = rows.find_counter(session, limit, month)
    if counter is not None:
        return LimitStatus(limit, month, counter.spent_nano_usd, counter.held_nano_usd)
    about = session, limit.project_id, limit.key_id
    return LimitStatus(limit, month, sum_counted(*about, month), sum_held(*about, month))


def _check(hard_nano_usd: int | None, soft_nano_usd: int | None) -> None:
    if hard_nano_usd is None and soft_nano_usd is None:
        raise InvalidArgument("A limit needs a hard amount, a soft one or both.", field="hard")
    for name, amount in (("hard", hard_nano_usd), ("soft", soft_nano_usd)):
        if amount is not None and not 0 <= amount <= MOST_NANO_USD:
            raise InvalidArgument(
                f"{name} must be from 0 to {MOST_NANO_USD} nano-USD, not {amount}.", field=name
            )
    if hard_nano_usd is not None and soft_nano_usd is not None and soft_nano_usd > hard_nano_usd:
        raise InvalidArgument(
            "soft is more than hard: nothing would be told before all is refused. Exchange them.",
            field="soft",
        )


def _check_key(session: Session, project_id: str, key_id: str) -> None:
    key = find_api_key(session, key_id)
    if key is None or key.project_id != project_id:
        raise KeyNotFound(
            f"The project has no key {key_id[:64]}. `headstart keys list` shows its keys.", field="key"
        )
