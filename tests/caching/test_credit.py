"""Credit: given once a reference, used by charges before anything else, and, for who pays beforehand, all there is."""

import pytest

from billing.corrections import correct
from billing.credit import grant, set_prepaid
from core.errors import CreditExhausted, InvalidArgument, ProjectNotFound
from models.credit import find_credit
from models.ledger_entry import Account, EntryKind, LedgerEntry
from tests.caching.spending import HIT, MONTH, REQUEST, WRITE, Spending, hours


def give(
    spending: Spending, amount: int, reference: str = "payment 1", note: str = "by wire ☂"
) -> LedgerEntry:
    with spending.database.write() as session:
        made = grant(session, spending.customer.project_id, amount, reference, spending.clock.now(), note)
        return made.entry


def prepay(spending: Spending, *, is_prepaid: bool = True) -> None:
    with spending.database.write() as session:
        set_prepaid(session, spending.customer.project_id, is_prepaid=is_prepaid)


def credit(spending: Spending) -> tuple[int, int, int]:
    """Granted, used, held."""
    with spending.database.read() as session:
        found = find_credit(session, spending.customer.project_id)
        assert found is not None
        return found.granted_nano_usd, found.used_nano_usd, found.held_nano_usd


def uses(spending: Spending) -> dict[str, int]:
    return {
        each.dedupe_key: each.amount_nano_usd
        for each in spending.entries()
        if each.kind == EntryKind.CREDIT_USE
    }


class TestGrants:
    def test_a_grant_is_an_entry_of_its_own(self, spending: Spending) -> None:
        entry = give(spending, 5_000)
        assert (entry.kind, entry.debit, entry.credit) == (EntryKind.GRANT, Account.GRANTED, Account.CREDIT)
        assert (entry.amount_nano_usd, entry.period, entry.note) == (5_000, MONTH, "by wire ☂")
        assert credit(spending) == (5_000, 0, 0)
        assert spending.faults() == []

    def test_the_same_reference_gives_nothing_twice(self, spending: Spending) -> None:
        first, again = give(spending, 5_000), give(spending, 5_000)
        assert first.id == again.id
        assert give(spending, 2_000, "payment 2").id != first.id
        assert credit(spending) == (7_000, 0, 0)
        with pytest.raises(InvalidArgument, match="that of a grant of 5000 nano-USD") as caught:
            give(spending, 5_001)
        assert caught.value.field == "reference"
        assert credit(spending) == (7_000, 0, 0)
        assert spending.faults() == []

    @pytest.mark.parametrize(
        ("amount", "reference", "field"),
        [
            (0, "r", "amount"),
            (-5, "r", "amount"),
            (10**18 + 1, "r", "amount"),
            (5, "", "reference"),
            (5, " ", "reference"),
            (5, "r" * 201, "reference"),
            (5, "r\0", "reference"),
            (5, "r\udcff", "reference"),
            (5, "r", "note"),
        ],
    )
    def test_a_bad_grant_is_refused_by_name(
        self, spending: Spending, amount: int, reference: str, field: str
    ) -> None:
        for note in (" ", "n" * 1_001, "n\0", "n\udcff") if field == "note" else ("why",):
            with pytest.raises(InvalidArgument) as caught:
                give(spending, amount, reference, note)
            assert caught.value.field == field
        assert spending.count("credits") == spending.count("ledger_entries") == 0

    def test_credit_stays_an_integer_of_the_database(self, spending: Spending) -> None:
        give(spending, 10**18)
        with pytest.raises(InvalidArgument, match="in all"):
            give(spending, 1, "payment 2")
        give(spending, 10**18)  # once more is the same one
        assert credit(spending) == (10**18, 0, 0)

    def test_a_project_that_is_not_there_is_given_nothing(self, spending: Spending) -> None:
        with pytest.raises(ProjectNotFound), spending.database.write() as session:
            grant(session, "proj_none", 5, "r", spending.clock.now())


class TestUse:
    def test_charges_use_credit_first_until_there_is_none(self, spending: Spending) -> None:
        give(spending, 7_000 + 3 * 4_000 + 2_500)
        spending.acquire(None, "first")
        spending.finish("first", output=3)
        assert uses(spending) == {"credit:first:input_tokens": 7_000, "credit:first:output_tokens": 12_000}
        spending.acquire(None, "second")
        spending.finish("second", output=1)
        assert uses(spending)["credit:second:input_tokens"] == 2_500
        assert credit(spending) == (21_500, 21_500, 0)
        spending.acquire(None, "third")
        spending.finish("third")
        assert len(uses(spending)) == 3
        (one,) = [each for each in spending.entries() if each.dedupe_key == "credit:second:input_tokens"]
        assert (one.debit, one.credit) == (Account.CREDIT, Account.RECEIVABLE)
        assert spending.faults() == []

    def test_storage_uses_it_by_the_hour(self, spending: Spending) -> None:
        give(spending, WRITE + hours(1.5))
        spending.active(ttl_seconds=2 * 3600)
        spending.clock.advance(2 * 3600)
        spending.keep_books()
        assert sorted(uses(spending).values())[:2] == [WRITE, hours(0.5)]
        assert credit(spending)[1] == WRITE + hours(1.5)
        assert spending.faults() == []

    def test_credit_alone_refuses_and_holds_nothing(self, spending: Spending) -> None:
        give(spending, 5)
        spending.acquire(None)
        assert credit(spending) == (5, 0, 0)
        assert spending.count("holds") == 0
        assert spending.finish()
        assert credit(spending) == (5, 5, 0)


class TestPrepaid:
    def test_what_credit_does_not_cover_is_refused_with_the_numbers(self, spending: Spending) -> None:
        prepay(spending)
        give(spending, 2 * REQUEST - 1)
        spending.acquire(None, "first")
        assert credit(spending) == (2 * REQUEST - 1, 0, REQUEST)
        with pytest.raises(CreditExhausted) as caught:
            spending.acquire(None, "second")
        assert caught.value.metadata == {
            "quota": "prepaid_credit",
            "limit": str(2 * REQUEST - 1),
            "in_use": str(REQUEST),
            "held": str(REQUEST),
            "requested": str(REQUEST),
        }
        assert caught.value.retry_after_seconds is None  # no waiting brings credit
        assert spending.finish("first", output=9)
        spending.acquire(None, "second")
        assert spending.faults() == []

    def test_credit_that_runs_out_in_the_middle_stops_what_is_new_and_nothing_that_runs(
        self, spending: Spending
    ) -> None:
        cache = spending.active(ttl_seconds=3600)
        give(spending, hours(1) + HIT + 100)
        prepay(spending)
        assert credit(spending)[2] == hours(1)  # what lives is held from the first on
        spending.acquire(cache, "hit")
        for refused in (
            lambda: spending.acquire(None, "next"),
            lambda: spending.extend(cache, ttl_seconds=3602),
            lambda: spending.create(ttl_seconds=1),
        ):
            with pytest.raises(CreditExhausted):
                refused()
        spending.extend(cache, ttl_seconds=3601)
        assert spending.finish("hit", output=10)
        spending.clock.advance(7200)
        spending.keep_books()
        assert credit(spending) == (hours(1) + HIT + 100, hours(1) + HIT + 100, 0)
        assert spending.faults() == []

    def test_too_little_credit_for_what_lives_ends_nothing(self, spending: Spending) -> None:
        cache = spending.active(ttl_seconds=3600)
        give(spending, 1_000)
        prepay(spending)
        spending.extend(cache, ttl_seconds=1800)
        with pytest.raises(CreditExhausted):
            spending.acquire(cache)
        spending.clock.advance(7200)
        spending.keep_books()
        assert credit(spending) == (1_000, 1_000, 0)
        assert spending.faults() == []

    def test_who_pays_afterwards_again_holds_nothing(self, spending: Spending) -> None:
        give(spending, REQUEST)
        prepay(spending)
        spending.acquire(None)
        prepay(spending, is_prepaid=False)
        assert credit(spending) == (REQUEST, 0, 0)
        assert spending.count("holds") == 0
        spending.acquire(None, "second")
        for name in ("gen_1", "second"):
            assert spending.finish(name, output=10)
        assert credit(spending) == (REQUEST, REQUEST, 0)
        assert spending.faults() == []

    def test_a_limit_and_credit_hold_together(self, spending: Spending) -> None:
        give(spending, 10 * REQUEST)
        spending.limit(10 * REQUEST)
        spending.acquire(None, "first")
        prepay(spending)
        assert credit(spending)[2] == spending.used()[1] == REQUEST
        spending.limit(REQUEST)
        with pytest.raises(Exception, match="may spend"):
            spending.acquire(None, "second")
        assert credit(spending)[2] == REQUEST  # the refusal by one lets go of the other
        prepay(spending, is_prepaid=False)
        assert spending.used() == (0, REQUEST)
        assert spending.faults() == []


class TestCorrections:
    def correct(self, spending: Spending, key: str, quantity: int) -> None:
        (entry,) = [each for each in spending.entries() if each.dedupe_key == key]
        with spending.database.write() as session:
            correct(session, entry.id, quantity, "a mistake", spending.clock.now())

    def test_what_is_taken_back_frees_the_limit_and_returns_its_credit(self, spending: Spending) -> None:
        spending.limit(10**9)
        give(spending, 30_000)
        spending.acquire(None, "r")
        spending.finish("r", output=10)  # 7,000 and 40,000, of which credit pays 23,000
        self.correct(spending, "r:output_tokens", 8)
        assert spending.used() == (39_000, 0)
        assert credit(spending) == (30_000, 30_000, 0)  # 32,000 are still charged
        self.correct(spending, "r:output_tokens", 5)
        assert credit(spending) == (30_000, 27_000, 0)
        self.correct(spending, "r:output_tokens", 0)
        assert credit(spending) == (30_000, 7_000, 0)
        assert spending.used() == (7_000, 0)
        self.correct(spending, "r:output_tokens", 4)
        assert credit(spending) == (30_000, 23_000, 0)
        self.correct(spending, "r:output_tokens", 1)
        assert credit(spending) == (30_000, 11_000, 0)
        assert spending.used() == (11_000, 0)
        assert spending.faults() == []

    def test_what_is_charged_more_uses_credit_and_may_pass_the_limit(self, spending: Spending) -> None:
        """An operator's word counts; the limit refuses what is new."""
        spending.limit(REQUEST)
        spending.acquire(None, "r")
        spending.finish("r", output=10)
        give(spending, 5_000)
        self.correct(spending, "r:output_tokens", 12)
        assert spending.used() == (REQUEST + 8_000, 0)
        assert credit(spending) == (5_000, 5_000, 0)
        assert spending.faults() == []
