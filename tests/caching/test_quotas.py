from functools import partial

import pytest

from core.errors import CacheQuota
from models.token_quota import TokenQuota, put_token_quota, remove_token_quota
from tests.caching.scene import Scene
from tests.models.rows import Customer


class TestOwnQuotas:
    """Of cached tokens, where a project has others than the server's."""

    def give(self, scene: Scene, owner: Customer, model: str, tokens: int) -> None:
        with scene.database.write() as session:
            quota = TokenQuota(project_id=owner.project_id, model=model, max_cached_tokens=tokens)
            put_token_quota(session, quota)

    def test_a_projects_own_quota_takes_the_place_of_the_servers(self, scene: Scene, other: Customer) -> None:
        self.give(scene, scene.customer, "*", 250)
        scene.active()
        scene.active()
        with pytest.raises(CacheQuota, match="limit=250, requested=100, in use=200"):
            scene.create(max_cached_tokens=10_000)
        with pytest.raises(CacheQuota, match="limit=99"):
            scene.create(customer=other, max_cached_tokens=99)
        scene.create(customer=other)

    def test_that_of_the_model_counts_before_that_of_any(self, scene: Scene) -> None:
        self.give(scene, scene.customer, "*", 0)
        with pytest.raises(CacheQuota):
            scene.create()
        self.give(scene, scene.customer, "tiny", 100)
        self.give(scene, scene.customer, "large", 5)
        scene.active()
        with pytest.raises(CacheQuota, match="limit=100"):
            scene.create()
        self.give(scene, scene.customer, "tiny", 200)
        scene.create()
        with scene.database.write() as session:
            assert remove_token_quota(session, scene.customer.project_id, "tiny")
            assert not remove_token_quota(session, scene.customer.project_id, "tiny")
        with pytest.raises(CacheQuota, match="limit=0"):
            scene.create()


class TestWhenToRetry:
    def test_as_soon_as_enough_will_have_expired(self, scene: Scene) -> None:
        for ttl_seconds in (30, 10, 20):
            scene.active(ttl_seconds=ttl_seconds)
        for max_caches, seconds in ((3, 10), (2, 20), (1, 30)):
            with pytest.raises(CacheQuota, match="there will be room at 2026-05-04T12:00:") as caught:
                scene.create(max_caches=max_caches)
            assert caught.value.retry_after_seconds == seconds
        for max_tokens, seconds in ((399, 10), (300, 10), (299, 20), (101, 30), (100, 30)):
            with pytest.raises(CacheQuota) as caught:
                scene.create(max_cached_tokens=max_tokens)
            assert caught.value.retry_after_seconds == seconds
        scene.clock.advance(20)
        scene.create(max_cached_tokens=200)

    def test_never_where_it_would_not_fit_alone(self, scene: Scene) -> None:
        scene.active()
        for create in (partial(scene.create, max_caches=0), partial(scene.create, max_cached_tokens=99)):
            with pytest.raises(CacheQuota, match="does not fit even alone") as caught:
                create()
            assert caught.value.retry_after_seconds is None
