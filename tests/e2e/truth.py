"""What must be true of one project, kept in plain Python beside its server: which caches there are, and what is owed."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from billing.meters import Meter
from core.clock import format_instant
from models.cache import Cache, CacheState
from models.placement import Placement
from models.usage import UsageState
from tests.e2e.books import quantities
from tests.e2e.customer import Answer, Customer, reason_of
from tests.e2e.home import Home


class Asked(NamedTuple):
    state: UsageState
    input_tokens: int
    cache_read_tokens: int
    output_tokens: int


def asked(answer: Answer) -> Asked:
    """What an answer that came whole says it cost."""
    cached = answer.usage.get("cachedContentTokenCount", 0)
    return Asked(UsageState.FINAL, answer.usage["promptTokenCount"] - cached, cached, answer.output_tokens)


@dataclass
class Truth:
    """live: expiry of each cache, as shown. gone: why each other cannot be used. writes: tokens of each that ever lived."""

    live: dict[str, str] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def created(self, cache: dict[str, Any]) -> str:
        name: str = cache["name"]
        self.live[name] = cache["expireTime"]
        self.writes[name] = cache["usageMetadata"]["totalTokenCount"]
        return name

    def deleted(self, name: str) -> None:
        del self.live[name]
        self.gone[name] = "CACHE_DELETED"

    def check(self, home: Home, customer: Customer) -> None:
        """Compare with what the server shows, and with every row that it keeps."""
        shown = customer.http.get("/v1beta/cachedContents", params={"pageSize": 1000}).json()
        assert {each["name"]: each["expireTime"] for each in shown.get("cachedContents", [])} == self.live
        for name in self.live:
            assert customer.get(name).json()["expireTime"] == self.live[name]
        for name, reason in self.gone.items():
            refused = customer.get(name)
            assert (refused.status_code, reason_of(refused)) == (403, reason)
        rows = {f"cachedContents/{row.id}": row for row in home.books.caches(customer.project_id)}
        self._check_rows(rows)
        self._check_books(home, customer, rows)

    def _check_rows(self, rows: dict[str, Cache]) -> None:
        assert rows.keys() == self.live.keys() | self.gone.keys()
        for name, row in rows.items():
            assert (row.state is CacheState.ACTIVE) == (name in self.live)
            assert (row.activated_at is not None) == (name in self.writes)
            assert row.state is not CacheState.PENDING
            assert (row.messages is None) == (name in self.gone)

    def _check_books(self, home: Home, customer: Customer, rows: dict[str, Cache]) -> None:
        books, project_id = home.books, customer.project_id
        writes = books.writes(project_id)
        assert {f"cachedContents/{row.cache_id}": row.cache_write_tokens for row in writes} == self.writes
        assert len(writes) == len(self.writes)
        measured = [
            Asked(row.state, row.input_tokens, row.cache_read_tokens, row.output_tokens)
            for row in books.generations(project_id)
        ]
        assert measured == self.asked
        segments = {f"cachedContents/{each.cache_id}": each for each in books.segments(project_id)}
        assert segments.keys() == self.writes.keys()
        for name, segment in segments.items():
            row = rows[name]
            assert (segment.started_at, segment.ends_at) == (row.activated_at, row.ended_at or row.expire_at)
            assert segment.token_count == self.writes[name]
            if name in self.live:
                assert format_instant(segment.ends_at) == self.live[name]
        with books.database.read() as session:
            placed = session.query(Placement).all()
        assert {f"cachedContents/{each.cache_id}" for each in placed} <= self.live.keys()
        assert len({each.incarnation for each in placed}) <= 1, "the dead hold nothing"
        bill = books.proven_bill(customer.address, customer.key)
        owed = [each for each in self.asked if each.state is UsageState.FINAL]
        as_of = datetime.fromisoformat(bill["asOf"])
        expected = {
            Meter.INPUT_TOKENS: sum(each.input_tokens for each in owed),
            Meter.OUTPUT_TOKENS: sum(each.output_tokens for each in owed),
            Meter.CACHE_READ_TOKENS: sum(each.cache_read_tokens for each in owed),
            Meter.IMPLICIT_CACHE_READ_TOKENS: 0,
            Meter.CACHE_WRITE_TOKENS: sum(self.writes.values()),
            Meter.CACHE_STORAGE_TOKEN_SECONDS: sum(
                each.token_count * (_second(min(each.ends_at, as_of)) - _second(each.started_at))
                for each in segments.values()
            ),
        }
        assert quantities(bill) == expected


def _second(instant: datetime) -> int:
    return int(instant.timestamp())
