"""Quote before you pay: what the command says of a file, by a server that counts, is what the books hold in the end, or more."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.customer import MODEL, Customer, document
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


def test_a_quote_is_the_bill_to_come(customer: Customer, shared: Shared, tmp_path: Path) -> None:
    """Asked first; then the cache is made, used and deleted before its time."""
    text = document(300, "quoted")
    file = tmp_path / "document.txt"
    file.write_text(text, encoding="utf-8")
    body = {"model": MODEL, "systemInstruction": {"parts": [{"text": text}]}, "ttl": "60.5s"}
    # How long a hit's prompt and answer are is found out by somebody else.
    rehearsal = shared.ballast.http.post("/v1beta/cachedContents", json=body).json()
    usage = hit(shared.ballast, rehearsal["name"])["usageMetadata"]
    shared.ballast.delete(rehearsal["name"])
    suffix = usage["promptTokenCount"] - usage["cachedContentTokenCount"]

    def quoted(seconds: int) -> dict[str, Any]:
        used = ("--suffix-tokens", str(suffix), "--output-tokens", str(usage["candidatesTokenCount"]))
        asked = ("--file", str(file), "--hits", str(HITS), "--ttl", str(seconds), *used, "--json")
        where = ("--url", customer.address, "--key", customer.key)
        found: dict[str, Any] = json.loads(shared.home.command("billing", "quote", *asked, *where))
        return found

    promised = quoted(61)  # it takes whole seconds; the cache has half of one less
    made = customer.http.post("/v1beta/cachedContents", json=body).json()
    answers = [hit(customer, made["name"]) for _ in range(HITS)]
    customer.delete(made["name"])
    assert all(answer["usageMetadata"] == usage for answer in answers)
    assert promised["tokenCount"] == made["usageMetadata"]["totalTokenCount"]

    bill = shared.books.proven_bill(customer.address, customer.key)
    (segment,) = shared.books.segments(customer.project_id)
    lived = int(segment.ends_at.timestamp()) - int(segment.started_at.timestamp())
    assert lived < promised["seconds"] == 61
    storage = dict.fromkeys(("quantity", "amountNanoUsd"), 0)
    for line, told in zip(bill["meters"], promised["meters"], strict=True):
        if line["meter"] == "cache_storage_token_seconds":
            storage = line
            assert line["quantity"] == lived * promised["tokenCount"] < told["quantity"]
            assert line["amountNanoUsd"] <= told["amountNanoUsd"]
            if lived:
                assert line | {"entries": 0} == quoted(lived)["meters"][1] | {"entries": 0}
        else:
            assert line == told
    assert bill["amountNanoUsd"] <= promised["amountNanoUsd"]
    assert (
        sum(answer["cost"]["amountNanoUsd"] for answer in answers)
        + sum(shared.books.cost(customer.project_id, f"write:{segment.cache_id}").values())
        == bill["amountNanoUsd"] - storage["amountNanoUsd"]
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
