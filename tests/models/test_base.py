from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy.dialects import postgresql, sqlite

from models.base import TokenIds, UtcDateTime
from models.cache import CacheState
from models.project import Project, get_project
from models.session import Database

POSTGRESQL = postgresql.dialect()  # type: ignore[no-untyped-call]
SQLITE = sqlite.dialect()
NOW = datetime(2026, 5, 4, 12, 0, 0, 1, tzinfo=UTC)


class TestUtcDateTime:
    def test_an_instant_comes_back_aware_and_to_the_microsecond(self, database: Database) -> None:
        with database.write() as session:
            session.add(
                Project(id="proj_1", name="one", created_at=NOW.astimezone(timezone(timedelta(hours=-7))))
            )
        with database.read() as session:
            created_at = get_project(session, "proj_1").created_at
        assert created_at == NOW
        assert created_at.tzinfo is UTC

    def test_a_naive_datetime_is_refused(self) -> None:
        with pytest.raises(ValueError, match="time zone"):
            UtcDateTime().process_bind_param(datetime(2026, 5, 4), SQLITE)  # noqa: DTZ001

    def test_postgresql_keeps_the_zone(self) -> None:
        assert UtcDateTime().process_bind_param(NOW, POSTGRESQL) == NOW
        berlin = NOW.astimezone(timezone(timedelta(hours=2)))
        read = UtcDateTime().process_result_value(berlin, POSTGRESQL)
        assert read is not None
        assert read.tzinfo is UTC


class TestTokenIds:
    def test_ids_are_four_bytes_each_little_end_first(self) -> None:
        written = TokenIds().process_bind_param([1, 49151, 2**31 - 1], SQLITE)
        assert written == bytes([1, 0, 0, 0, 0xFF, 0xBF, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F])

    @pytest.mark.parametrize("ids", [(), (0,), tuple(range(1000))])
    def test_ids_come_back_as_they_were(self, ids: tuple[int, ...]) -> None:
        written = TokenIds().process_bind_param(ids, SQLITE)
        assert TokenIds().process_result_value(written, SQLITE) == ids


def test_states_are_stored_as_gemini_spells_them() -> None:
    assert [str(state) for state in CacheState] == ["PENDING", "ACTIVE", "EXPIRED", "DELETED", "FAILED"]
