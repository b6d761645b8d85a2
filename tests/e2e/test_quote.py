"""Quote before you pay: what the command says of a file, by a server that counts, is what the books hold in the end."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.customer import MODEL, Customer, document
from tests.e2e.processes import wait_until
from tests.e2e.shared import Shared

QUESTION = "Where does the river go?"
HITS, OUTPUT_TOKENS = 4, 6


def hit(customer: Customer, name: str) -> dict[str, Any]:
    """Ask greedily and without automatic reuse: each answer costs what the first does."""
    body = customer.body(QUESTION, name, tokens=OUTPUT_TOKENS)
    answer = customer.http.post(
        customer.path("generateContent"), json=body, headers={"x-headstart-reuse": "off"}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_quote_equals_the_bill(customer: Customer, shared: Shared, tmp_path: Path) -> None:
    text = document(300, "quoted")
    file = tmp_path / "document.txt"
    file.write_text(text, encoding="utf-8")

    def quoted(seconds: int, suffix_tokens: int, output_tokens: int) -> dict[str, Any]:
        used = ("--suffix-tokens", str(suffix_tokens), "--output-tokens", str(output_tokens))
        asked = ("--file", str(file), "--hits", str(HITS), "--ttl", str(seconds), *used, "--json")
        where = ("--url", customer.address, "--key", customer.key)
        found: dict[str, Any] = json.loads(shared.home.command("billing", "quote", *asked, *where))
        return found

    made = customer.http.post(
        "/v1beta/cachedContents",
        json={"model": MODEL, "systemInstruction": {"parts": [{"text": text}]}, "ttl": "4s"},
    ).json()
    answers = [hit(customer, made["name"]) for _ in range(HITS)]
    usage = answers[0]["usageMetadata"]
    suffix = usage["promptTokenCount"] - usage["cachedContentTokenCount"]
    output = usage["candidatesTokenCount"]
    assert all(answer["usageMetadata"] == usage for answer in answers)
    wait_until(lambda: made["name"] not in customer.names(), "it has expired")
    (segment,) = shared.books.segments(customer.project_id)
    lived = int(segment.ends_at.timestamp()) - int(segment.started_at.timestamp())
    promised = quoted(lived, suffix, output)
    assert promised["tokenCount"] == made["usageMetadata"]["totalTokenCount"]
    assert promised["seconds"] == lived

    bill = shared.books.proven_bill(customer.address, customer.key)
    amounts = {
        line["meter"]: (line["quantity"], line["amountNanoUsd"], line["withoutCacheNanoUsd"])
        for line in bill["meters"]
    }
    for line in promised["meters"]:
        assert amounts[line["meter"]] == (
            line["quantity"],
            line["amountNanoUsd"],
            line["withoutCacheNanoUsd"],
        )
    assert bill["amountNanoUsd"] == promised["amountNanoUsd"]
    assert bill["savedNanoUsd"] == promised["savedNanoUsd"]
    assert (
        sum(answer["cost"]["amountNanoUsd"] for answer in answers)
        + sum(shared.books.cost(customer.project_id, f"write:{segment.cache_id}").values())
        == promised["amountNanoUsd"] - promised["meters"][1]["amountNanoUsd"]
    )


def test_a_quote_of_a_number_needs_no_server_and_is_the_same(customer: Customer, shared: Shared) -> None:
    asked = (
        "--tokens",
        "300",
        "--hits",
        "9",
        "--ttl",
        "600",
        "--suffix-tokens",
        "12",
        "--output-tokens",
        "5",
        "--json",
    )
    project = shared.books.project_name(customer.project_id)
    alone = json.loads(
        shared.home.command("billing", "quote", *asked, "--model", MODEL, "--project", project)
    )
    body = {
        "model": MODEL,
        "tokenCount": 300,
        "expectedHits": 9,
        "ttl": "600s",
        "suffixTokens": 12,
        "outputTokens": 5,
    }
    told = customer.http.post("/headstart/v1/billing/quote", json=body).json()
    varying = dict.fromkeys(("start", "end"))
    assert alone | varying == told | varying


def test_the_command_and_the_server_list_the_same_caches(customer: Customer, shared: Shared) -> None:
    used = customer.create(document(200, "used"))["name"]
    unused = customer.create(document(200, "unused"))["name"]
    for _ in range(30):
        customer.http.post(customer.path("generateContent"), json=customer.body(QUESTION, used, tokens=1))
    for name in (used, unused):
        customer.delete(name)
    told = customer.http.get("/headstart/v1/billing/caches").json()
    project = shared.books.project_name(customer.project_id)
    shown = json.loads(shared.home.command("billing", "caches", "--project", project, "--json"))
    assert shown["caches"] == told["caches"]
    assert [each["name"] for each in told["caches"]] == [unused, used]
    assert [each["hits"] for each in told["caches"]] == [0, 30]
    assert [each["costsMoreThanItSaves"] for each in told["caches"]] == [True, False]
