"""Projects and keys: nobody reads a neighbour, a key does what its scopes say, and a revoked one nothing at all."""

from collections.abc import Callable
from contextlib import closing

import httpx
import pytest

from core import api_keys
from tests.e2e.customer import MODEL, Customer, document, reason_of, user
from tests.e2e.shared import Shared

ABSENT = "cachedContents/" + "a" * 24


@pytest.mark.parametrize(
    "call",
    [
        lambda one, name: one.get(name),
        lambda one, name: one.http.patch(f"/v1beta/{name}", json={"ttl": "60s"}),
        lambda one, name: one.http.patch(f"/v1beta/{name}", json={"ttl": "wrong"}),
        lambda one, name: one.http.delete(f"/v1beta/{name}"),
        lambda one, name: one.http.post(one.path("generateContent"), json=one.body("Who?", name)),
        lambda one, name: one.http.post(one.path("streamGenerateContent"), json=one.body("Who?", name)),
        lambda one, name: one.http.post(
            one.path("countTokens"),
            json={
                "generateContentRequest": {
                    "model": f"models/{MODEL}",
                    "contents": [user("Who?")],
                    "cachedContent": name,
                }
            },
        ),
    ],
    ids=["get", "patch", "wrong patch", "delete", "generate", "stream", "count"],
)
def test_another_projects_cache_is_as_absent_as_none(
    call: Callable[[Customer, str], httpx.Response], customer: Customer, shared: Shared
) -> None:
    foreign = shared.ballast.names()[0]
    theirs, absent = call(customer, foreign), call(customer, ABSENT)
    assert (theirs.status_code, theirs.content) == (absent.status_code, absent.content)
    assert theirs.status_code in {400, 403}
    assert customer.names() == []
    assert not shared.books.usage(customer.project_id)
    assert shared.ballast.get(foreign).status_code == 200


def test_scopes(customer: Customer, shared: Shared) -> None:
    name = customer.create(document(100, "scopes"))["name"]
    customer.ask("What may I?", name)
    project = shared.books.project_name(customer.project_id)

    def statuses(key: str) -> list[int]:
        """Of: a list of caches, an answer, a bill, another's bill."""
        with httpx.Client(base_url=customer.address, headers={"x-goog-api-key": key}, timeout=60) as client:
            answers = [
                client.get("/v1beta/cachedContents"),
                client.post(customer.path("generateContent"), json=customer.body("What may I?", name)),
                client.get("/headstart/v1/billing/report"),
                client.get("/headstart/v1/billing/report", params={"project": "default"}),
            ]
        reasons = [reason_of(answer) for answer in answers if answer.status_code == 403]
        assert set(reasons) <= {"SCOPE_MISSING"}
        return [answer.status_code for answer in answers]

    assert statuses(customer.key) == [200, 200, 200, 404]
    assert statuses(shared.new_key(project, "caches")) == [200, 403, 403, 403]
    assert statuses(shared.new_key(project, "generate")) == [403, 200, 403, 403]
    assert statuses(shared.new_key(project, "billing")) == [403, 403, 200, 404]
    assert statuses(shared.home.operator_key) == [403, 403, 200, 200]


def test_an_operator_sees_every_bill_and_a_project_its_own(customer: Customer, shared: Shared) -> None:
    customer.create(document(100, "whose bill"))
    own = shared.books.proven_bill(customer.address, customer.key)
    everything = shared.books.proven_bill(customer.address, shared.home.operator_key)
    assert {group["project"] for group in own["groups"]} == {customer.project_id}
    assert {customer.project_id, shared.ballast.project_id} <= {
        group["project"] for group in everything["groups"]
    }


def test_a_revoked_key_ends_at_once_and_what_it_made_does_not(customer: Customer, shared: Shared) -> None:
    shown = shared.new_key(shared.books.project_name(customer.project_id))
    key_id = str(api_keys.parse(shown))
    with closing(Customer(customer.address, shown)) as second:
        name = second.create(document(100, "revoked"))["name"]
        shared.home.command("keys", "revoke", key_id)
        refused = second.get(name)
    assert (refused.status_code, reason_of(refused)) == (400, "API_KEY_INVALID")
    assert customer.ask("Are you there?", name).usage["cachedContentTokenCount"] > 0
    assert [row.key_id for row in shared.books.writes(customer.project_id)] == [key_id]
