"""However an engine comes to its end, whoever was told that his message is taken is told what became of it."""

import threading
from pathlib import Path

import pytest

from core.errors import Unavailable
from tests.workers.engine.conftest import Drive
from tests.workers.engine.driving import NAMESPACE, Answer, Driver
from tests.workers.engine.test_tiers import ANSWERED, Gate, files
from tests.workers.engine.tiny import random_tokens
from workers.engine.sequence import Ending


def test_stopping_ends_everything_once_and_takes_nothing_new(drive: Drive) -> None:
    driver = drive(max_running_requests=2)
    driver.build("cache", random_tokens(70, seed=1))
    everything: list[Answer] = []
    with driver.standing_still():
        before = driver.engine.counters.steps
        everything += [driver.ask([n], "cache", max_output_tokens=500) for n in (1, 2)]
        everything += [driver.ask([3]), driver.start_build("new", random_tokens(900, seed=2))]
        everything.append(driver.ask([4], "new"))
        driver.at_step(4, lambda: driver.engine._leave(driver.engine._begin_stop))
    assert [answer.outcome for answer in everything] == [(Ending.CANCELLED, None)] * 5
    driver.engine.stop()
    assert driver.engine.counters.steps - before == 5  # it was told during the fifth, and took no sixth
    for refused in (
        lambda: driver.ask([1]),
        lambda: driver.start_build("late", [1]),
        lambda: driver.engine.call(lambda segments: None),
    ):
        with pytest.raises(Unavailable, match="stopped"):
            refused()
    driver.engine.cancel("request 0")
    driver.engine.drop("cache")


def test_what_comes_in_the_very_moment_of_stopping_is_ended_too(drive: Drive) -> None:
    driver = drive()
    with driver.standing_still():
        driver.engine._leave(driver.engine._begin_stop)
        late = [driver.ask([1]), driver.start_build("cache", [1, 2]), driver.ask([1], "cache")]
    assert [answer.outcome for answer in late] == [(Ending.CANCELLED, None)] * 3


def test_an_engine_that_dies_leaves_nobody_waiting(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    """Only a bug of ours could bring that about; a request that hangs for ever would be the worse answer."""
    driver = drive()

    def break_loop() -> None:
        raise ArithmeticError("as the test would have it")

    answers: list[Answer] = []

    def die() -> None:
        driver.engine._leave(break_loop)
        answers.append(driver.ask([2]))
        answers.append(driver.start_build("cache", [1, 2]))

    with driver.standing_still():
        answers.append(driver.ask([1], max_output_tokens=50))
        driver.at_step(3, die)
    assert answers[0].ending == Ending.CANCELLED
    assert [answer.ending for answer in answers] == [Ending.CANCELLED] * 3
    driver.engine._thread.join()
    assert "as the test would have it" in caplog.text
    with pytest.raises(Unavailable):
        driver.ask([1])


def test_a_count_that_is_wrong_ends_the_engine(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    """It is looked at when there is nothing to do. What would be read next might be another project's."""
    driver = drive()
    driver.build("cache", random_tokens(150, seed=1))

    def miscount() -> None:
        driver.engine._tree.counts.pinned += 1

    driver.call(miscount)
    driver.engine._thread.join(30)
    assert not driver.engine.is_running
    assert "the engine has come to an end" in caplog.text
    assert "was counted" in caplog.text
    with pytest.raises(Unavailable):
        driver.ask([1, 2], "cache")


def stop_while_shut(driver: Driver, *gates: Gate) -> None:
    """What the gates hold up ends when the engine's thread has ended."""
    stopping = threading.Thread(target=driver.engine.stop)
    stopping.start()
    driver.engine._thread.join()
    for gate in gates:
        gate.opened.set()
    stopping.join()


def test_what_ended_while_it_was_written_has_no_file_after_a_stop(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, gate = drive(disk=tmp_path / "kv"), Gate(monkeypatch, "write")
    driver.build("cache", random_tokens(300, seed=1))
    assert gate.reached.wait(60)
    driver.drop("cache")
    stop_while_shut(driver, gate)
    assert not files(tmp_path / "kv")


@pytest.mark.parametrize("is_begun", [True, False])
def test_what_ended_while_it_was_to_be_read_has_no_file_after_a_stop(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_begun: bool
) -> None:
    driver, gate = drive(disk=tmp_path / "kv"), Gate(monkeypatch, "read_into")
    for name, seed in (("first", 1), ("second", 2)):
        driver.build(name, random_tokens(128, seed=seed))
    driver.give_up_arena()
    for name in ("first", "second"):
        driver.ask([1, 2], name, request_id=name)
    assert gate.reached.wait(60)
    read = "first" if is_begun else "second"
    driver.engine.cancel(read)
    driver.drop(read)
    driver.used_blocks()
    assert len(files(tmp_path / "kv")) == 2
    stop_while_shut(driver, gate)
    assert len(files(tmp_path / "kv")) == 1


def test_automatic_kv_that_is_written_just_then_does_not_outlive_a_stop(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, gate = drive(disk=tmp_path / "kv", blocks=12), Gate(monkeypatch, "write")
    asked = driver.ask(random_tokens(640, seed=1), namespace=NAMESPACE, max_output_tokens=1)
    assert asked.outcome == ANSWERED
    assert gate.reached.wait(60)
    stop_while_shut(driver, gate)
    assert not files(tmp_path / "kv")
