"""The same key and body mean the same cache; another body, another project or a day later do not."""

from datetime import timedelta

import pytest

from caching.idempotency import KEPT, Idempotency, create_once, find_made_cache
from caching.sweeping import sweep
from core.errors import IdempotencyMismatch
from models.cache import Cache
from tests.caching.at_once import at_once
from tests.caching.scene import Scene
from tests.models.rows import Customer, make_cache

KEY = Idempotency.of("key", {"a": 1, "b": [2]})


def once(
    scene: Scene, idempotency: Idempotency = KEY, customer: Customer | None = None
) -> tuple[Cache, bool]:
    owner = customer or scene.customer

    with scene.database.write() as session:
        now = scene.clock.now()

        def create(_: object) -> Cache:
            cache = make_cache(owner, created_at=now, updated_at=now, expire_at=now + timedelta(hours=48))
            session.add(cache)
            session.flush()
            return cache

        return create_once(session, owner.project_id, idempotency, now, create)


def found(scene: Scene, idempotency: Idempotency = KEY) -> Cache | None:
    with scene.database.read() as session:
        return find_made_cache(session, scene.customer.project_id, idempotency, scene.clock.now())


def test_the_second_is_given_the_first(scene: Scene) -> None:
    assert found(scene) is None
    first, is_new = once(scene)
    assert is_new
    again, is_new = once(scene)
    assert not is_new
    assert again.id == first.id
    assert (found(scene) or first).id == first.id
    assert scene.count("caches") == 1


def test_the_order_of_names_in_a_body_says_nothing(scene: Scene) -> None:
    first, _ = once(scene)
    again, is_new = once(scene, Idempotency.of("key", {"b": [2], "a": 1}))
    assert (again.id, is_new) == (first.id, False)


@pytest.mark.parametrize("body", [{"a": 1}, {"a": 1, "b": [2, 2]}, {"a": "1", "b": [2]}, {}])
def test_another_body_is_refused(scene: Scene, body: dict[str, object]) -> None:
    once(scene)
    with pytest.raises(IdempotencyMismatch, match="another body") as caught:
        once(scene, Idempotency.of("key", body))
    assert caught.value.field == "Idempotency-Key"
    with pytest.raises(IdempotencyMismatch):
        found(scene, Idempotency.of("key", body))
    assert scene.count("caches") == 1


def test_keys_are_a_projects_own(scene: Scene, other: Customer) -> None:
    once(scene)
    assert once(scene, customer=other)[1]
    assert scene.count("caches") == 2


@pytest.mark.parametrize("body", [{"a": 1, "b": [2]}, {"a": "shortened since"}])
def test_what_failed_leaves_its_key_free(scene: Scene, body: dict[str, object]) -> None:
    first, _ = once(scene)
    assert scene.fail(first)
    asked = Idempotency.of("key", body)
    assert found(scene, asked) is None
    again, is_new = once(scene, asked)
    assert is_new
    assert again.id != first.id


def test_what_ended_is_still_the_answer(scene: Scene) -> None:
    first, _ = once(scene)
    assert scene.activate(first)
    scene.delete(first)
    again, is_new = once(scene)
    assert (again.id, is_new) == (first.id, False)


def test_a_day_later_the_key_is_forgotten(scene: Scene) -> None:
    first, _ = once(scene)
    scene.clock.advance(KEPT.total_seconds() - 1)
    assert once(scene)[0].id == first.id
    with scene.database.write() as session:
        sweep(session, scene.clock, 10)
    assert scene.count("idempotency_keys") == 1
    scene.clock.advance(1)
    assert found(scene) is None
    with scene.database.write() as session:
        sweep(session, scene.clock, 10)
    assert scene.count("idempotency_keys") == 0


def test_of_ten_at_once_one_creates(scene: Scene) -> None:
    outcomes = at_once(*[lambda: once(scene)] * 10)
    made = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
    assert len(made) == 10
    assert sum(is_new for _, is_new in made) == 1
    assert len({cache.id for cache, _ in made}) == 1
    assert scene.count("caches") == 1
