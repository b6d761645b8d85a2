"""A clock that shows what it is set to."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session


@dataclass(slots=True)
class SetClock:
    at: datetime

    def now(self) -> datetime:
        return self.at

    def now_in(self, session: Session) -> datetime:  # noqa: ARG002 - it is the same everywhere
        return self.at
