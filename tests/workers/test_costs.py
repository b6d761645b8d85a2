"""A finished answer tells its cost: what the ledger holds when it is told, however the request ended."""

import pytest

from core.messages import Cost, FailedEvent, FinishedEvent, FinishReason
from models.ledger_entry import LedgerEntry, list_entries
from tests.workers.workshop import Workshop, some_tokens


def posted(workshop: Workshop, request_id: str) -> list[LedgerEntry]:
    with workshop.database.read() as session:
        found = list_entries(session, workshop.customer.project_id, 0, 1000)
    return [each for each in found if each.dedupe_key.startswith(f"{request_id}:")]


def told(workshop: Workshop, request_id: str) -> Cost:
    """The cost that came with the last event, once it was found to be the ledger's."""
    event = workshop.last(request_id)
    assert isinstance(event, FinishedEvent)
    found = posted(workshop, request_id)
    assert dict(event.cost.meters) == {each.meter: each.amount_nano_usd for each in found}
    assert event.cost.amount_nano_usd == sum(each.amount_nano_usd for each in found) > 0
    assert event.cost.without_cache_nano_usd == sum(each.without_cache_nano_usd for each in found)
    return event.cost


def test_with_a_cache_without_one_and_with_what_was_found(workshop: Workshop) -> None:
    cache_id, question = workshop.cached(some_tokens(70, 1)), some_tokens(200, 2)
    computed = {"input_tokens": 200 * 100, "output_tokens": 8 * 400}
    cost = told(workshop, workshop.ask(question, cache_id))
    assert dict(cost.meters) == {"cache_read_tokens": 70 * 10, **computed}
    assert cost.without_cache_nano_usd - cost.amount_nano_usd == 70 * 90
    again = told(workshop, workshop.ask(question, cache_id))
    assert dict(again.meters) == {
        "cache_read_tokens": 70 * 10,
        "implicit_cache_read_tokens": 186 * 10,
        "input_tokens": 14 * 100,
        "output_tokens": 8 * 400,
    }
    assert again.without_cache_nano_usd == cost.without_cache_nano_usd
    alone = told(workshop, workshop.ask(some_tokens(9, 3)))
    assert dict(alone.meters) == {"input_tokens": 9 * 100, "output_tokens": 8 * 400}
    assert alone.without_cache_nano_usd == alone.amount_nano_usd


def test_of_several_answers_is_that_of_all_of_them(workshop: Workshop) -> None:
    cost = told(workshop, workshop.ask(some_tokens(9, 3), candidate_count=3))
    assert dict(cost.meters) == {"input_tokens": 9 * 100, "output_tokens": 3 * 8 * 400}


@pytest.mark.parametrize("step", [1, 4])
def test_cancelled_is_that_of_what_was_produced(workshop: Workshop, step: int) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(5, 1), max_output_tokens=500)
        workshop.driver.at_step(step, lambda: workshop.runtime.cancel(request_id))
    cost = told(workshop, request_id)
    event = workshop.last(request_id)
    assert isinstance(event, FinishedEvent)
    assert event.reasons == (FinishReason.CANCELLED,)
    assert dict(cost.meters) == {"input_tokens": 500, "output_tokens": (step + 1) * 400}


def test_cancelled_before_the_first_token_is_none(workshop: Workshop) -> None:
    with workshop.driver.standing_still():
        request_id = workshop.ask(some_tokens(250, 1))
        workshop.driver.at_step(0, lambda: workshop.runtime.cancel(request_id))
    assert isinstance(workshop.last(request_id), FailedEvent)
    assert posted(workshop, request_id) == []


def test_of_a_request_that_waited_for_a_rebuild_has_no_part_for_that(workshop: Workshop) -> None:
    cache_id = workshop.cached(some_tokens(70, 1))
    workshop.restart()  # the KV of the cache is gone
    cost = told(workshop, workshop.ask(some_tokens(5, 2), cache_id))
    assert dict(cost.meters) == {
        "cache_read_tokens": 70 * 10,
        "input_tokens": 5 * 100,
        "output_tokens": 8 * 400,
    }
