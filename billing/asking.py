"""A report as somebody asks for it: words of a URL or of the command line, read into a query."""

from collections.abc import Sequence
from datetime import datetime

from billing.periods import Bucket, parse_period, parse_zone
from billing.report import Query, Subject
from core.errors import InvalidArgument


def parse_query(
    *,
    start: str | None,
    end: str | None,
    group_by: Sequence[str],
    zone: str | None,
    project_id: str | None,
    now: datetime,
) -> Query:
    """Raises InvalidArgument, which names the field, for anything that is not understood."""
    in_zone = parse_zone(zone)
    buckets = [Bucket(word) for word in group_by if word in [*Bucket]]
    subjects = [Subject(word) for word in group_by if word in [*Subject]]
    known = [*Bucket, *Subject]
    for word in group_by:
        if word not in known:
            raise InvalidArgument(
                f"groupBy cannot be {word[:64]!r}; it is a list of {', '.join(known)}.", field="groupBy"
            )
    if len(buckets) > 1 or len(set(subjects)) < len(subjects):
        raise InvalidArgument(
            "groupBy names more than one of hour, day and month, or one thing twice.", field="groupBy"
        )
    return Query(
        period=parse_period(start, end, now, in_zone),
        project_id=project_id,
        subjects=tuple(subjects),
        bucket=buckets[0] if buckets else None,
        zone=in_zone,
    )
