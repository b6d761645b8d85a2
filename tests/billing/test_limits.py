"""Limits as an operator sets and sees them; what happens under them is in tests/caching/test_spending.py."""

import pytest

from billing.limits import LimitStatus, list_status, remove_limit, set_limit, tell_soft_limits
from billing.money import parse_usd, usd
from core.errors import InvalidArgument, KeyNotFound, LimitNotFound, ProjectNotFound
from models.session import Database
from tests.billing.rows import (
    T0,
    add_prices,
    add_project,
    after,
    book,
    bring_up_to_date,
    faults,
    generate,
    key_of,
)


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


def limit(
    database: Database, project: str, hard: int | None = None, soft: int | None = None, key: str | None = None
) -> LimitStatus:
    with database.write() as session:
        return set_limit(session, project, key, hard_nano_usd=hard, soft_nano_usd=soft, now=after(0))


def statuses(database: Database, project: str | None = None, at: float = 0) -> list[LimitStatus]:
    with database.read() as session:
        return list_status(session, project, after(at))


def spend(database: Database, project: str, name: str, tokens: int) -> None:
    """100 nano-USD a token."""
    with database.write() as session:
        generate(session, project, name, prompt=tokens, output=0)


class TestSetting:
    @pytest.mark.parametrize(
        ("hard", "soft", "field"),
        [
            (None, None, "hard"),
            (-1, None, "hard"),
            (None, -1, "soft"),
            (10**18 + 1, None, "hard"),
            (10, 11, "soft"),
        ],
    )
    def test_a_bad_amount_is_refused_by_name(
        self, database: Database, project: str, hard: int | None, soft: int | None, field: str
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            limit(database, project, hard, soft)
        assert caught.value.field == field
        assert statuses(database) == []

    def test_another_projects_key_is_as_absent_as_none(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "q")
        messages = []
        for key in (key_of(other), "key_none"):
            with pytest.raises(KeyNotFound) as caught:
                limit(database, project, 5, key=key)
            messages.append(caught.value.message.replace(key, "KEY"))
        assert messages[0] == messages[1]
        with pytest.raises(ProjectNotFound):
            limit(database, "proj_none", 5)

    def test_a_limit_that_is_not_there_cannot_be_removed(self, database: Database, project: str) -> None:
        limit(database, project, 5)
        for key in (key_of(project), "key_none"):
            with pytest.raises(LimitNotFound), database.write() as session:
                remove_limit(session, project, key)
        with database.write() as session:
            remove_limit(session, project, None)
        with pytest.raises(LimitNotFound), database.write() as session:
            remove_limit(session, project, None)

    def test_zero_lets_nothing_through_that_costs(self, database: Database, project: str) -> None:
        limit(database, project, 0)
        with pytest.raises(Exception, match=r"may spend 0\.000000000 USD"):
            spend(database, project, "r", 1)
        spend(database, project, "nothing", 0)


class TestShowing:
    def test_each_limit_shows_what_its_month_has(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "q")
        spend(database, project, "r", 30)
        spend(database, other, "s", 5)
        for owner, key in ((project, None), (project, key_of(project)), (other, None)):
            limit(database, owner, 10_000, 2_000, key)
        found = statuses(database)
        assert [(each.limit.project_id, each.limit.key_id, each.spent_nano_usd) for each in found] == [
            (project, "", 3_000),
            (project, key_of(project), 3_000),
            (other, "", 500),
        ]
        assert [each.is_soft_reached for each in found] == [True, True, False]
        assert {(each.month, f"{each.resets_at:%F}") for each in found} == {("2026-03", "2026-04-01")}
        assert found[0].left_nano_usd == 7_000
        assert [each.limit.project_id for each in statuses(database, other)] == [other]

    def test_a_month_that_has_begun_without_anything_shows_nothing_used(
        self, database: Database, project: str
    ) -> None:
        spend(database, project, "r", 30)
        limit(database, project, 10_000)
        (found,) = statuses(database, at=31 * 86_400)
        assert (found.month, found.spent_nano_usd, found.left_nano_usd) == ("2026-04", 0, 10_000)


class TestSoft:
    def told(self, database: Database, at: float = 9) -> list[tuple[str, str, int]]:
        with database.write() as session:
            found = tell_soft_limits(session, after(at))
        return [(each.limit.key_id, each.month, each.spent_nano_usd) for each in found]

    def test_reaching_it_is_told_once_a_month_and_limit_and_refuses_nothing(
        self, database: Database, project: str
    ) -> None:
        limit(database, project, None, 2_000)
        limit(database, project, None, 3_000, key_of(project))
        spend(database, project, "r1", 19)
        assert self.told(database) == []
        spend(database, project, "r2", 1)
        assert self.told(database) == [("", "2026-03", 2_000)]
        spend(database, project, "r3", 90)
        assert self.told(database) == [(key_of(project), "2026-03", 11_000)]
        assert self.told(database) == []
        with database.write() as session:
            generate(session, project, "r4", prompt=20, output=0, at=after(31 * 86_400))
        assert self.told(database) == [("", "2026-04", 2_000)]
        assert faults(database, after(31 * 86_400)) == []

    def test_of_a_month_that_is_over_nothing_is_told(self, database: Database, project: str) -> None:
        april = 31 * 86_400
        limit(database, project, None, 9_000)
        spend(database, project, "r", 50)
        with database.write() as session:
            set_limit(session, project, None, hard_nano_usd=None, soft_nano_usd=2_000, now=after(april))
        assert self.told(database, april) == []
        assert self.told(database) == [("", "2026-03", 5_000)]  # the clock is set back: it is not over

    def test_another_amount_is_told_again(self, database: Database, project: str) -> None:
        spend(database, project, "r", 50)
        limit(database, project, None, 2_000)
        assert self.told(database) == [("", "2026-03", 5_000)]
        limit(database, project, None, 5_000)
        assert self.told(database) == [("", "2026-03", 5_000)]
        limit(database, project, None, 5_001)
        assert self.told(database) == []


def test_a_request_that_was_never_held_is_counted_all_the_same(database: Database, project: str) -> None:
    """As one that was reserved by a version before this one, without the most it may put out."""
    with database.write() as session:
        generate(session, project, "r", prompt=10, output=0)
    limit(database, project, 10**9)
    with database.write() as session:
        generate(session, project, "long", prompt=0, output=1_000)  # nothing was held for its output
    (found,) = statuses(database)
    assert (found.spent_nano_usd, found.held_nano_usd) == (1_000 + 400_000, 0)
    bring_up_to_date(database, T0)
    assert faults(database, after(1)) == []


@pytest.mark.parametrize(
    ("text", "nano"),
    [("12", 12 * 10**9), ("0.5", 5 * 10**8), ("0.000000001", 1), (" 007.10 ", 7_100_000_000)],
)
def test_amounts_are_read_exactly(text: str, nano: int) -> None:
    assert parse_usd(text, "hard") == nano
    assert parse_usd(usd(nano), "hard") == nano


@pytest.mark.parametrize(
    "text", ["", "-1", "1e3", "1,5", "0.0000000001", "1.", ".5", "nan", "٣", "1" * 13, "0x1", "1_000"]
)
def test_what_is_no_amount_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument, match="soft must be an amount") as caught:
        parse_usd(text, "soft")
    assert caught.value.field == "soft"
