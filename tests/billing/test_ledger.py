from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from billing import usage
from billing.charges import Charge, usage_charges
from billing.ledger import post
from billing.meters import Meter
from billing.months import month_of
from billing.prices import load_prices, store
from core.errors import LedgerConflict
from models.billing_period import close, list_periods, lock_period
from models.ledger_entry import Account, EntryKind, LedgerEntry, append, list_entries
from models.session import Database
from models.usage import find_usage
from tests.billing.rows import (
    T0,
    add_cache,
    add_prices,
    add_project,
    after,
    book,
    faults,
    generate,
    joined,
    key_of,
    reserve,
    write,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        add_prices(session, book())
        return add_project(session, "p")


def entries(database: Database) -> list[LedgerEntry]:
    with database.read() as session:
        return list(list_entries(session, None, 0, 1000))


def on_the_books(database: Database) -> list[tuple[object, ...]]:
    with database.read() as session:
        periods = [(each.month, each.state, each.amount_nano_usd) for each in list_periods(session)]
    return [*((each.id, each.amount_nano_usd, each.note) for each in entries(database)), *periods]


def charge(project_id: str, **changes: object) -> Charge:
    made = Charge(
        dedupe_key="gen:input_tokens",
        project_id=project_id,
        key_id=key_of(project_id),
        cache_id=None,
        model="tiny",
        meter=Meter.INPUT_TOKENS,
        price_id=1,
        hour=NOON,
        quantity=10,
        amount_nano_usd=1000,
        without_cache_nano_usd=1000,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class TestWhatIsPosted:
    def test_a_settled_request_is_charged_in_its_unit_part_by_part(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            add_cache(session, project, "c", tokens=1000)
            write(session, project, "c", tokens=1000)
            generate(
                session,
                project,
                "r",
                prompt=1300,
                cached=1000,
                cache_id="c",
                implicit=256,
                output=7,
                at=after(5),
            )
        posted = {each.dedupe_key: each for each in entries(database)}
        assert {
            key: (each.quantity, each.amount_nano_usd, each.without_cache_nano_usd)
            for key, each in posted.items()
        } == {
            "write:c:cache_write_tokens": (1000, 100_000, 0),
            "r:cache_read_tokens": (1000, 10_000, 100_000),
            "r:implicit_cache_read_tokens": (256, 2_560, 25_600),
            "r:input_tokens": (44, 4_400, 4_400),
            "r:output_tokens": (7, 2_800, 2_800),
        }
        for each in posted.values():
            assert (each.kind, each.debit, each.credit) == (
                EntryKind.USAGE,
                Account.RECEIVABLE,
                Account.REVENUE,
            )
            assert (each.project_id, each.key_id, each.cache_id) == (project, key_of(project), "c")
            assert (each.model, each.hour, each.period) == ("tiny", NOON, "2026-03")
        assert faults(database, after(10)) == []

    def test_parts_are_rounded_down_each_by_itself(self, database: Database) -> None:
        with database.write() as session:
            half = Meter.CACHE_READ_TOKENS, Meter.IMPLICIT_CACHE_READ_TOKENS
            add_prices(
                session,
                book(dict.fromkeys(Meter, 0) | dict.fromkeys(half, 500_000) | {Meter.INPUT_TOKENS: 10**6}),
            )
            project = add_project(session, "p")
            add_cache(session, project, "c", tokens=3)
            generate(session, project, "r", prompt=8, cached=3, cache_id="c", implicit=5, output=0)
        assert [each.amount_nano_usd for each in entries(database)] == [1, 2]

    def test_a_void_or_running_request_is_not_charged(self, database: Database, project: str) -> None:
        with database.write() as session:
            reserve(session, project, "running", prompt=10)
            reserve(session, project, "failed", prompt=10)
            assert usage.void(session, "failed", 1, after(1), "FAILED")
        assert entries(database) == []

    def test_a_request_has_the_prices_of_its_beginning_and_the_hour_of_its_end(
        self, database: Database, project: str
    ) -> None:
        dearer = book({Meter.OUTPUT_TOKENS: 800_000_000}, since=after(3600))
        with database.write() as session:
            store(session, joined(book(), dearer), T0)
            for name, begun in (("early", 3599.9), ("late", 3600)):
                reserve(session, project, name, prompt=0, at=after(begun))
                assert usage.finalise(session, name, 1, 1000, after(7200), "STOP")
        assert [(each.amount_nano_usd, each.hour) for each in entries(database)] == [
            (400_000, after(7200)),
            (800_000, after(7200)),
        ]
        assert faults(database, after(7300)) == []

    def test_what_a_project_has_a_price_of_its_own_for_costs_that(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            own = book({Meter.INPUT_TOKENS: 50_000_000}, project_id=project)
            store(session, joined(book(), own), T0 - timedelta(days=400))
            other = add_project(session, "q")
            for each in (project, other):
                generate(session, each, f"r_{each}", prompt=10, output=0)
        assert [each.amount_nano_usd for each in entries(database)] == [500, 1000]
        assert faults(database, after(10)) == []

    def test_owed_rows_from_before_the_ledger_are_charged_once(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            reserve(session, project, "old", prompt=10)
            session.execute(
                text("UPDATE usage SET state = 'FINAL', occurred_at = created_at, end_reason = 'STOP'")
            )
        assert faults(database, after(10)) == [
            "owed_usage_is_posted: usage old: it is owed and not in the ledger",
            *faults(database, after(10))[1:],
        ]
        for _ in range(2):
            with database.write() as session:
                assert usage.charge_unposted(session, after(20), 10).is_last
        assert [each.dedupe_key for each in entries(database)] == ["old:input_tokens"]
        assert faults(database, after(30)) == []

    def test_an_owed_row_that_cannot_be_charged_holds_up_no_other(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            price_id = load_prices(session).at(project, "tiny", Meter.INPUT_TOKENS, T0).id
            for name, model in (("a", "unpriced"), ("b", "tiny"), ("c", "unpriced"), ("d", "tiny")):
                reserve(session, project, name, prompt=10, model=model)
            session.execute(
                text("UPDATE usage SET state = 'FINAL', occurred_at = created_at, end_reason = 'STOP'")
            )
            post(session, [charge(project, price_id=price_id, dedupe_key="b:input_tokens")], T0)
            post(session, [charge(project, price_id=price_id, dedupe_key="d:input_tokens", quantity=9)], T0)
            reserve(session, project, "e", prompt=10)
            session.execute(
                text(
                    "UPDATE usage SET state = 'FINAL', occurred_at = created_at, end_reason = 'STOP' WHERE id = 'e'"
                )
            )
        passed_over: dict[str, str] = {}
        reached, is_last = "", False
        while not is_last:
            with database.write() as session:
                unit = usage.charge_unposted(session, after(20), 2, reached)
            reached, is_last = unit.reached, unit.is_last
            passed_over |= unit.passed_over
        assert list(passed_over) == ["usage a", "usage c", "usage d"]
        assert "has no price" in passed_over["usage a"]
        assert "holds 9 for" in passed_over["usage d"]
        with database.read() as session:
            found = session.scalars(text("SELECT id FROM usage WHERE is_posted ORDER BY id")).all()
        assert found == ["b", "e"]


class TestOnce:
    def test_the_same_charge_again_changes_nothing(self, database: Database, project: str) -> None:
        with database.write() as session:
            generate(session, project, "r", prompt=10, output=3)
            row = find_usage(session, "r")
            assert row is not None
            again = usage_charges(row, load_prices(session))
        for _ in range(3):
            with database.write() as session:
                assert post(session, again, after(100)) == 0
        assert len(entries(database)) == 2

    @pytest.mark.parametrize(
        "change", [{"quantity": 11}, {"amount_nano_usd": 1}, {"hour": NOON + timedelta(hours=1)}]
    )
    def test_other_figures_under_the_same_key_are_an_alarm_and_post_nothing(
        self, database: Database, project: str, change: dict[str, object]
    ) -> None:
        with database.read() as session:
            price_id = load_prices(session).at(project, "tiny", Meter.INPUT_TOKENS, T0).id
        first = charge(project, price_id=price_id)
        again = charge(project, price_id=price_id, **change)
        with database.write() as session:
            assert post(session, [first], T0) == 1
        with pytest.raises(LedgerConflict, match="gen:input_tokens"), database.write() as session:
            post(session, [charge(project, price_id=price_id, dedupe_key="new"), again], T0)
        assert [each.dedupe_key for each in entries(database)] == ["gen:input_tokens"]

    def test_one_key_in_two_projects_is_two_charges(self, database: Database, project: str) -> None:
        with database.write() as session:
            price_id = load_prices(session).at(project, "tiny", Meter.INPUT_TOKENS, T0).id
            other = add_project(session, "q")
            assert post(session, [charge(each, price_id=price_id) for each in (project, other)], T0) == 2


class TestMonths:
    def test_a_month_is_that_of_utc(self) -> None:
        east = timedelta(hours=5, minutes=30)
        assert month_of(datetime(2026, 3, 1, 5, 29, tzinfo=UTC) - east) == "2026-02"
        assert month_of(datetime(2026, 3, 1, 5, 30, tzinfo=UTC) - east) == "2026-03"

    def test_what_comes_late_for_a_closed_month_is_a_correction_of_the_open_one(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            reserve(session, project, "late", prompt=10)
            period = lock_period(session, "2026-03")
            close(session, period, after(60), 0)
            price_id = load_prices(session).at(project, "tiny", Meter.INPUT_TOKENS, T0).id
            april = datetime(2026, 4, 2, tzinfo=UTC)
            post(session, [charge(project, price_id=price_id)], april)
        (entry,) = entries(database)
        assert (entry.kind, entry.period, entry.hour, entry.quantity) == (
            EntryKind.CORRECTION,
            "2026-04",
            NOON,
            10,
        )

    def test_a_clock_that_was_set_back_into_a_closed_month_posts_into_the_next(
        self, database: Database, project: str
    ) -> None:
        with database.write() as session:
            period = lock_period(session, "2026-03")
            close(session, period, after(60), 0)
            generate(session, project, "r", prompt=10, output=0)
        (entry,) = entries(database)
        assert (entry.kind, entry.period) == (EntryKind.CORRECTION, "2026-04")


class TestImmutability:
    @pytest.fixture
    def used(self, database: Database, project: str) -> Database:
        with database.write() as session:
            generate(session, project, "r", prompt=10, output=3)
            period = lock_period(session, "2026-03")
            close(session, period, after(60), 0)
        return database

    def test_the_database_refuses_to_change_the_books(self, used: Database, kind: str) -> None:
        insert = "INSERT INTO ledger_entries SELECT * FROM ledger_entries ON CONFLICT"
        statements = [
            "UPDATE ledger_entries SET amount_nano_usd = 0",
            "UPDATE ledger_entries SET note = 'x' WHERE meter = 'output_tokens'",
            "DELETE FROM ledger_entries",
            "UPDATE billing_periods SET state = 'OPEN', closed_at = NULL, amount_nano_usd = NULL",
            "DELETE FROM billing_periods",
            (
                "INSERT INTO billing_periods (month, state) VALUES ('2026-03', 'OPEN') "
                "ON CONFLICT (month) DO UPDATE SET state = 'OPEN', closed_at = NULL, amount_nano_usd = NULL"
            ),
        ]
        if kind == "sqlite":
            names = [column.name for column in LedgerEntry.__table__.columns]
            others = ", ".join(name for name in names if name != "id")
            changed = others.replace("without_cache_nano_usd", "7")
            statements += [
                f"{insert.replace(' ON', ' WHERE TRUE ON')} (id) DO UPDATE SET amount_nano_usd = 0",
                f"INSERT OR REPLACE INTO ledger_entries (id, {others}) SELECT id, {changed} FROM ledger_entries",
                f"INSERT OR REPLACE INTO ledger_entries ({others}) SELECT {changed} FROM ledger_entries",
                f"REPLACE INTO ledger_entries (id, {others}) SELECT id + 100, {changed} FROM ledger_entries",
                "INSERT OR REPLACE INTO billing_periods (month, state) VALUES ('2026-03', 'OPEN')",
            ]
        else:
            statements.append(f"{insert} (id) DO UPDATE SET amount_nano_usd = 0")
        before = on_the_books(used)
        for statement in statements:
            with pytest.raises(DBAPIError, match="on the books stays"), used.write() as session:
                session.execute(text(statement))
            assert on_the_books(used) == before

    def test_sqlite_refuses_whoever_else_opens_the_file_to_replace_an_entry(
        self, used: Database, kind: str
    ) -> None:
        if kind != "sqlite":
            pytest.skip("PostgreSQL knows no REPLACE")
        with used.write() as session:
            session.execute(text("PRAGMA recursive_triggers = OFF"))
            try:
                with pytest.raises(DBAPIError, match="on the books stays"), session.begin_nested():
                    session.execute(text("REPLACE INTO ledger_entries SELECT * FROM ledger_entries"))
            finally:
                session.execute(text("PRAGMA recursive_triggers = ON"))

    def test_nor_to_empty_them(self, used: Database, kind: str) -> None:
        if kind != "postgresql":
            pytest.skip("SQLite knows no TRUNCATE")
        for table in ("ledger_entries", "billing_periods, ledger_entries"):
            with pytest.raises(DBAPIError, match="on the books stays"), used.write() as session:
                session.execute(text(f"TRUNCATE {table}"))

    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            ({"credit": Account.CREDIT}, "accounts_by_kind"),
            ({"kind": EntryKind.GRANT}, "accounts_by_kind"),
            ({"quantity": -1}, "negative_when_correcting"),
            ({"amount_nano_usd": -1}, "negative_when_correcting"),
            ({"meter": None}, "charge_is_metered"),
            ({"price_id": None}, "charge_is_metered"),
        ],
    )
    def test_an_entry_that_cannot_be_true_is_refused(
        self, used: Database, change: dict[str, object], rule: str
    ) -> None:
        first = entries(used)[0]
        columns = {column.name: getattr(first, column.name) for column in LedgerEntry.__table__.columns}
        with pytest.raises(IntegrityError, match=rule), used.write() as session:
            append(session, LedgerEntry(**(columns | {"id": None, "dedupe_key": "other"} | change)))
