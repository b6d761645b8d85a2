"""`headstart billing limits`, `credit` and `quotas`."""

import json
from datetime import UTC, datetime

import pytest

from billing.prices import store
from models.api_key import list_api_keys
from models.session import Database
from tests.billing.rows import T0, add_project, book, generate, key_of
from tests.cli.running import done, headstart, refused


@pytest.fixture
def project(database: Database) -> str:
    with database.write() as session:
        store(session, book(), T0)
        return add_project(session, "busy")


def listed(what: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(done("billing", what, "list", "--json"))
    return found


class TestLimits:
    def test_a_limit_is_set_shown_and_removed(self, project: str) -> None:
        told = done("billing", "limits", "set", "busy", "--hard", "25", "--soft", "20.5")
        assert "hard 25.000000000, soft 20.500000000 USD a month" in told
        made = json.loads(
            done("billing", "limits", "set", project, "--key", key_of(project), "--soft", "0", "--json")
        )
        assert (made["key"], made["hardNanoUsd"], made["softNanoUsd"]) == (key_of(project), None, 0)
        shown = listed("limits")
        assert [
            (each["project"], each["key"], each["hardNanoUsd"], each["softNanoUsd"]) for each in shown
        ] == [
            (project, None, 25 * 10**9, 20_500_000_000),
            (project, key_of(project), None, 0),
        ]
        table = done("billing", "limits", "list", "--project", "busy")
        for words in ("busy", "(all)", key_of(project), "25.000000000", "20.500000000", "none"):
            assert words in table
        assert f"The soft limit of key {key_of(project)} is reached" in table
        done("billing", "limits", "remove", "busy", "--key", key_of(project))
        assert [each["key"] for each in listed("limits")] == [None]
        assert "There is no limit on key" in refused(
            "billing", "limits", "remove", "busy", "--key", "key_none"
        )
        done("billing", "limits", "remove", "busy")
        for more in ((), ("--key", "key_none")):
            assert "project busy. " in refused("billing", "limits", "remove", "busy", *more)

    def test_what_was_spent_this_month_counts(self, database: Database, project: str) -> None:
        now = datetime.now(UTC)
        with database.write() as session:
            generate(session, project, "r", prompt=10, output=0, at=now)
        told = done("billing", "limits", "set", "busy", "--hard", "1")
        assert f"In {now:%Y-%m}: 0.000001000 spent, 0.000000000 held." in told
        assert listed("limits")[0]["leftNanoUsd"] == 10**9 - 1_000

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("busy",), "needs a hard amount, a soft one or both"),
            (("busy", "--hard", "1e3"), "hard must be an amount in USD"),
            (("busy", "--soft", "0.0000000001"), "soft must be an amount in USD"),
            (("busy", "--hard", "1", "--soft", "2"), "soft is more than hard"),
            (("busy", "--hard", "1", "--key", "key_none"), "The project has no key key_none"),
            (("nobody", "--hard", "1"), "There is no project nobody"),
            (("busy", "--hard", "99999999999"), "hard must be from 0 to"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, project: str, words: tuple[str, ...], message: str) -> None:
        assert message in refused("billing", "limits", "set", *words)
        assert listed("limits") == []

    def test_a_key_of_another_project_is_as_absent_as_none(self, database: Database, project: str) -> None:
        with database.write() as session:
            other = add_project(session, "other")
            (key,) = list_api_keys(session, other)
        message = refused("billing", "limits", "set", "busy", "--hard", "1", "--key", key.id)
        absent = refused("billing", "limits", "set", "busy", "--hard", "1", "--key", "key_none")
        assert message.replace(key.id, "key_none") == absent


class TestCredit:
    def test_credit_is_granted_once_a_reference_and_shown(self, project: str) -> None:
        assert "grants busy 12.500000000 USD" in done(
            "billing", "credit", "grant", "busy", "12.5", "--reference", "inv-7", "--note", "☂"
        )
        told = done("billing", "credit", "grant", "busy", "12.5", "--reference", "inv-7")
        assert "granted busy 12.500000000 USD before, and nothing is given twice" in told
        again = json.loads(
            done("billing", "credit", "grant", project, "12.5", "--reference", "inv-7", "--json")
        )
        assert again["isNew"] is False
        assert (again["grantedNanoUsd"], again["leftNanoUsd"]) == (12_500_000_000, 12_500_000_000)
        assert "grant of 12500000000 nano-USD" in refused(
            "billing", "credit", "grant", "busy", "13", "--reference", "inv-7"
        )
        assert [(each["project"], each["isPrepaid"]) for each in listed("credit")] == [(project, False)]
        assert "busy pays beforehand" in done("billing", "credit", "update", "busy", "--prepaid")
        assert listed("credit")[0]["isPrepaid"] is True
        table = done("billing", "credit", "list", "--project", "busy")
        assert "12.500000000" in table
        assert (
            json.loads(done("billing", "credit", "update", "busy", "--no-prepaid", "--json"))["isPrepaid"]
            is False
        )
        (entry,) = json.loads(done("billing", "entries", "--json"))
        assert (entry["kind"], entry["amountNanoUsd"], entry["note"]) == ("GRANT", 12_500_000_000, "☂")
        assert "to the nano" in done("billing", "verify")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("busy", "0", "--reference", "r"), "amount must be more than 0"),
            (("busy", "x", "--reference", "r"), "amount must be an amount in USD"),
            (("busy", "1", "--reference", " "), "reference must name the grant"),
            (("nobody", "1", "--reference", "r"), "There is no project nobody"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, project: str, words: tuple[str, ...], message: str) -> None:
        assert message in refused("billing", "credit", "grant", *words)
        assert listed("credit") == []

    def test_an_update_says_what_to_change(self, project: str) -> None:
        outcome = headstart("billing", "credit", "update", "busy")
        assert outcome.status == 2
        assert "say what to change" in outcome.err


class TestQuotas:
    def test_a_quota_is_set_shown_and_removed(self, project: str) -> None:
        assert "100,000 tokens in caches of each model" in done("billing", "quotas", "set", "busy", "100000")
        made = json.loads(done("billing", "quotas", "set", project, "0", "--model", "tiny", "--json"))
        assert made == {"project": project, "model": "tiny", "maxCachedTokens": 0}
        assert [(each["model"], each["maxCachedTokens"]) for each in listed("quotas")] == [
            ("*", 100_000),
            ("tiny", 0),
        ]
        assert "100,000" in done("billing", "quotas", "list", "--project", "busy")
        done("billing", "quotas", "remove", "busy", "--model", "tiny")
        assert [each["model"] for each in listed("quotas")] == ["*"]
        assert "no quota of its own for model tiny" in refused(
            "billing", "quotas", "remove", "busy", "--model", "tiny"
        )

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("busy", str(2**62 + 1)), "tokens must be from 0 to"),
            (("busy", "5", "--model", "models/tiny"), "without 'models/'"),
            (("busy", "5", "--model", " "), "model must be"),
            (("nobody", "5"), "There is no project nobody"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, project: str, words: tuple[str, ...], message: str) -> None:
        assert message in refused("billing", "quotas", "set", *words)
        assert listed("quotas") == []
