"""Caches that are made, extended, used, deleted and expire all at once, with more clients than there is room for."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from models.usage import UsageState
from tests.e2e.books import quantities
from tests.e2e.churn import QUESTION, Client
from tests.e2e.customer import Customer, document
from tests.e2e.home import Home
from tests.e2e.processes import wait_until
from tests.e2e.shared import Shared

PROJECTS, CLIENTS = 8, 32
SECONDS, MOST_SECONDS = 4, 120
REFUSALS = {"CACHE_DELETED", "CACHE_EXPIRED", "CACHE_QUOTA", "ARENA_FULL"}


@pytest.mark.long
def test_every_client_sees_its_own_caches_and_each_token_is_owed_once(home: Home) -> None:
    # Room for a few caches and a few requests.
    server = home.start(
        prefill_chunk_tokens=128, max_caches_per_project=3, max_running_requests=2, max_waiting_requests=2
    )
    shared = Shared(home, server, home.customer(server))
    ballast = shared.ballast
    kept = ballast.create(document(256, "ballast"), ttl="86400s")["name"]
    held_before = ballast.held_tokens()
    texts = [document(50 + 150 * number, f"churn {number}") for number in range(4)]
    answers = {text: ballast.ask(QUESTION, None, text, tokens=4).text for text in texts}
    assert len(set(answers.values())) == len(texts)

    projects = [shared.new_customer() for _ in range(PROJECTS)]
    for project in projects[
        ::2
    ]:  # what is held and spent there must be right too, which `proven_bill` proves
        home.command("billing", "limits", "set", project.project_id, "--hard", "1000000")
        home.command("billing", "credit", "grant", project.project_id, "0.0001", "--reference", "churn")
    clients: list[Client] = []
    for number in range(CLIENTS):
        project, neighbour = projects[number % PROJECTS], clients[-1].lives if clients else {}
        customer = Customer(server.address, project.key, project.project_id)
        home.customers.append(customer)
        clients.append(Client(customer, answers, random.Random(number), neighbour))
    began = time.monotonic()

    def missing() -> set[str]:
        return REFUSALS - {reason for client in clients for _, reason in list(client.refused)}

    def is_over() -> bool:
        """After some seconds; later where the machine is so slow that not all has happened."""
        seconds = time.monotonic() - began
        return seconds > (MOST_SECONDS if missing() else SECONDS)

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda client: client.run(is_over), clients))
    assert not missing()
    for project in projects:
        wait_until(lambda: not shared.unsettled(project.project_id), "everything is settled")  # noqa: B023
        check_books(home, project, [each for each in clients if each.customer.key == project.key])
        for name in project.names():
            project.http.delete(f"/v1beta/{name}")  # some will just have expired
    wait_until(lambda: ballast.held_tokens() == held_before, "the memory of all that ended is given back")
    assert ballast.names() == [kept]
    home.books.proven_bill(server.address, home.operator_key)
    assert server.terminate() == 0


def check_books(home: Home, project: Customer, clients: list[Client]) -> None:
    """Compare what the books say of a project with what its clients were told."""
    lives = {name: life for client in clients for name, life in client.lives.items()}
    answers = [answer for client in clients for answer in client.answers]
    writes = home.books.writes(project.project_id)
    assert {f"cachedContents/{row.cache_id}": row.cache_write_tokens for row in writes} == {
        name: life.tokens for name, life in lives.items()
    }
    assert len(writes) == len(lives)

    segments = home.books.segments(project.project_id)
    assert len(segments) == len(lives)
    for segment in segments:
        life = lives[f"cachedContents/{segment.cache_id}"]
        assert segment.token_count == life.tokens
        assert life.created.has(segment.started_at)
        assert life.deleted.has(segment.ends_at) if life.deleted else segment.ends_at == life.expire_at

    final = [row for row in home.books.generations(project.project_id) if row.state is UsageState.FINAL]
    assert sorted((row.prompt_tokens, row.cache_read_tokens, row.output_tokens) for row in final) == sorted(
        (each.usage["promptTokenCount"], each.usage["cachedContentTokenCount"], each.output_tokens)
        for each in answers
    )
    owed = quantities(home.books.proven_bill(project.address, project.key))
    assert owed["cache_write_tokens"] == sum(life.tokens for life in lives.values())
    assert owed["output_tokens"] == sum(each.output_tokens for each in answers)
    assert owed["cache_read_tokens"] == sum(each.usage["cachedContentTokenCount"] for each in answers)
