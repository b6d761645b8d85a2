"""What several of our own lists ask alike: whose they are to be, how many rows a page has, and where it goes on."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from api.auth import Caller
from billing.report import Query
from billing.report_json import columns, zone_name
from core.errors import InvalidArgument, ProjectNotFound
from models.project import get_project_named

PAGE_SIZE, MAX_PAGE_SIZE = 1_000, 10_000
# Each page is a whole report, made by one of the few threads that read for everybody: some 30 microseconds for each.
MOST_ROWS = 100_000


def asked_project(session: Session, caller: Caller, asked: str | None) -> str | None:
    """Whose bill it is; None for all. What is another project's is as absent as what does not exist."""
    if asked is None:
        return caller.project_id
    project_id = get_project_named(session, asked).id
    if caller.project_id not in (None, project_id):
        raise ProjectNotFound(f"There is no project {asked}.", field="project")
    return project_id


def page_size(text: str | None) -> int:
    if text is None:
        return PAGE_SIZE
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_PAGE_SIZE:
        raise InvalidArgument(f"pageSize must be a number from 1 to {MAX_PAGE_SIZE}.", field="pageSize")
    return int(text)


def about_pages(kind: str, query: Query, asked: Mapping[str, str]) -> list[str]:
    """What a page token is for. A list that ends now goes on ending then, so its end moves from one page to the next."""
    period = query.period
    end = period.end.isoformat() if "end" in asked else "now"
    where = [str(query.project_id), period.start.isoformat(), end, zone_name(query)]
    return [kind, *where, *columns(query)]
