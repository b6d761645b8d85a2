"""The metrics of a whole server: counted as answers are told, read by `headstart models show`, and without a customer's words."""

import json
import socket
from typing import Any

import httpx

from tests.e2e.customer import MODEL, document
from tests.e2e.home import Home
from tests.e2e.processes import Server

QUESTION = "What is counted?"


def shown(home: Home, server: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        home.command("models", "show", "--json", "--metrics-url", server.metrics_address)
    )
    return found


def test_models_show_tells_what_answers_told(home: Home) -> None:
    server = home.start(automatic_reuse=True)
    before = shown(home, server)
    assert before["model"]["name"] == MODEL
    assert before["promptTokens"] == {"computed": 0, "explicit": 0, "implicit": 0}
    assert before["timeToFirstToken"] == []  # warming up is not told
    on_device = sum(each["bytes"] for each in before["kvBytes"] if each["tier"] == "device")
    assert on_device == before["pinBudget"]["limitBytes"] * 2

    customer = home.customer(server)
    text = document(200, "metrics")
    name = customer.create(text)["name"]
    usages = [customer.ask(QUESTION, name).usage, customer.ask(QUESTION, None, text).usage]
    usages.append(customer.ask(QUESTION, None, text).usage)
    after = shown(home, server)
    cached = [usage.get("cachedContentTokenCount", 0) for usage in usages]
    assert after["promptTokens"]["explicit"] == cached[0] > 0
    assert after["promptTokens"]["implicit"] == cached[1] + cached[2] > 0
    assert sum(after["promptTokens"].values()) == sum(usage["promptTokenCount"] for usage in usages)
    assert after["prefillTokensSkipped"] == sum(cached)
    kinds = {(each["kind"], each["tier"]): each["count"] for each in after["timeToFirstToken"]}
    assert kinds == {("explicit", "device"): 1, ("implicit", "device"): 2}
    assert all(0 < each["medianSeconds"] <= each["p95Seconds"] < 60 for each in after["timeToFirstToken"])
    assert after["pinBudget"]["usedBytes"] > 0
    assert after["steps"]["meanSeconds"] > 0

    told = httpx.get(server.metrics_address, trust_env=False).text
    row = home.books.cache(name)
    for secret in (home.project_key, home.operator_key, name, row.id, row.project_id, QUESTION):
        assert secret not in told
    assert server.terminate() == 0

    again = home.start(kv_disk_bytes=0)
    customer = home.customer(again)
    usage = customer.ask(QUESTION, name).usage
    rebuilt = shown(home, again)
    assert sum(rebuilt["rebuilds"].values()) == 1
    assert rebuilt["promptTokens"]["explicit"] == usage["cachedContentTokenCount"] == cached[0]
    assert rebuilt["prefillTokensSkipped"] == 0  # the KV was computed again before the first who read it
    assert again.terminate() == 0


def test_a_metrics_port_that_is_taken_stops_the_start_before_the_model_is_loaded(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        message = home.refused("--metrics-port", port, model="/no/such/model")
    assert "HEADSTART_METRICS_PORT" in message
    assert port in message
