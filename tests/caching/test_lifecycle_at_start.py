"""What a start settles before anything is served: what dead processes left, and caches of another model."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from billing.accrual import accrue
from caching import lifecycle
from core.errors import CacheExpired, CacheModelRetired, FingerprintChanged
from models.cache import CacheState
from models.usage import UsageState, find_usage
from tests.caching.scene import Scene
from tests.fakes.clock import START

NOTHING = (None, None, None)


class TestRecover:
    def test_nothing_is_left_half_usable(self, scene: Scene) -> None:
        left = scene.create(incarnation="inc_0")
        mine = scene.create(incarnation="inc_1")
        alive = scene.active(incarnation="inc_0")
        scene.acquire(alive, "gen_mine")
        with scene.database.write() as session:
            dead = find_usage(session, "gen_mine")
            assert dead is not None
            dead.incarnation = "inc_0"
        scene.acquire(alive, "gen_other")
        now = scene.clock.advance(5)

        with scene.database.write() as session:
            assert lifecycle.recover(session, scene.clock, "inc_1") == (1, 1)

        assert (scene.row(left).state, scene.row(left).failure) == (CacheState.FAILED, "worker_lost")
        assert scene.content(left) == NOTHING
        assert not scene.activate(left)
        assert scene.state(mine) == CacheState.PENDING
        assert scene.get(alive).state == CacheState.ACTIVE
        assert scene.segment(alive) == (START, START + timedelta(seconds=3600))
        with scene.database.read() as session:
            voided = find_usage(session, "gen_mine")
            running = find_usage(session, "gen_other")
            assert voided is not None
            assert running is not None
            assert (voided.state, voided.occurred_at) == (UsageState.VOID, now)
            assert running.state == UsageState.RESERVED
        with scene.database.write() as session:
            assert lifecycle.recover(session, scene.clock, "inc_1") == (0, 0)

    def test_a_clock_that_was_set_back_recovers_nevertheless(self, scene: Scene) -> None:
        cache = scene.create(incarnation="inc_0")
        scene.clock.advance(-3600)
        with scene.database.write() as session:
            lifecycle.recover(session, scene.clock, "inc_1")
        assert scene.row(cache).ended_at == START


class TestFingerprint:
    def check(self, scene: Scene, fingerprint: str) -> None:
        with scene.database.read() as session:
            lifecycle.check_fingerprint(session, fingerprint, scene.clock.now())

    def test_the_same_model_is_served_on(self, scene: Scene) -> None:
        scene.active()
        self.check(scene, "aa:bb")

    def test_new_weights_may_rebuild(self, scene: Scene) -> None:
        scene.active()
        with pytest.raises(FingerprintChanged, match=r"served: 1\. .*--rebuild-caches.*--retire-caches"):
            self.check(scene, "aa:cc")

    def test_another_tokenizer_may_not(self, scene: Scene) -> None:
        scene.active(fingerprint="aa:bb")
        scene.active(fingerprint="cc:bb")
        with pytest.raises(FingerprintChanged, match=r"served: 2\. .*--retire-caches") as caught:
            self.check(scene, "aa:dd")
        assert "--rebuild-caches" not in caught.value.message

    def test_caches_that_are_not_usable_do_not_matter(self, scene: Scene) -> None:
        scene.create(ttl_seconds=10)
        scene.active(ttl_seconds=10)
        scene.delete(scene.active())
        scene.clock.advance(10)
        self.check(scene, "zz:zz")

    def test_rebinding_takes_those_whose_tokens_mean_the_same(self, scene: Scene) -> None:
        alike, other = scene.active(fingerprint="aa:bb"), scene.active(fingerprint="cc:bb")
        with scene.database.write() as session:
            assert lifecycle.rebind(session, "aa:dd") == 1
        assert scene.row(alike).fingerprint == "aa:dd"
        assert scene.row(other).fingerprint == "cc:bb"
        assert scene.count("usage") == 2
        with pytest.raises(FingerprintChanged, match=r"served: 1\."):
            self.check(scene, "aa:dd")

    def test_retiring_ends_the_others_and_their_bill_at_that_instant(self, scene: Scene) -> None:
        kept, old, expired = scene.active(fingerprint="aa:dd"), scene.active(), scene.active(ttl_seconds=5)
        now = scene.clock.advance(10)
        with scene.database.write() as session:
            assert lifecycle.retire(session, scene.clock, "aa:dd") == [old.id]
        assert scene.get(kept).state == CacheState.ACTIVE
        assert scene.segment(old) == (START, now)
        assert scene.content(old) == NOTHING
        with pytest.raises(CacheModelRetired):
            scene.get(old)
        with pytest.raises(CacheExpired):
            scene.get(expired)
        assert scene.segment(expired) == (START, START + timedelta(seconds=5))
        self.check(scene, "aa:dd")

    def test_segments_are_held_before_terms_as_by_whoever_keeps_the_books(self, scene: Scene) -> None:
        """`headstart billing post` may run meanwhile: two orders would wait for each other."""
        for fingerprint in ("aa:bb", "cc:bb"):
            scene.active(fingerprint=fingerprint, ttl_seconds=9_000)
        later = scene.clock.advance(3600)
        units: list[Callable[[Session], object]] = [
            lambda session: lifecycle.retire(session, scene.clock, "aa:bb"),
            lambda session: accrue(session, later),
        ]
        for unit in units:
            tables: list[str] = []
            with scene.database.write() as session:
                event.listen(
                    session.connection(),
                    "before_cursor_execute",
                    lambda *call: tables.extend(re.findall(r"FROM (storage_segments|projects)", call[2])),  # noqa: B023
                )
                unit(session)
            assert tables[0] == "storage_segments"
            assert "projects" in tables
